"""Mistakes in training loops, networks and what is kept of them."""
