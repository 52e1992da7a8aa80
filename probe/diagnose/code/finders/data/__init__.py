"""Mistakes in data, splits and evaluations."""
