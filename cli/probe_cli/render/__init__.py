"""Formats answers: tables, figures, comparisons, graphs."""
