"""Recipes: checks as files with SQL and thresholds, and the code that judges their rows."""
