"""What everything else stands on: errors, settings, clock, wire, isolation. Imports nothing above it."""
