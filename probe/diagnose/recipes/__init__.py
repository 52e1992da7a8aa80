"""Recipes: SQL and thresholds as files, and judging their rows."""
