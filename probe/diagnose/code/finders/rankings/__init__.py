"""Ranked lists, and what is counted of them."""
