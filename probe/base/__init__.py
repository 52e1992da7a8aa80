"""Foundations: errors, settings, clock, wire format, isolation. Imports nothing above."""
