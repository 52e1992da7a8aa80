"""Finders for axes that meet others than they should."""
