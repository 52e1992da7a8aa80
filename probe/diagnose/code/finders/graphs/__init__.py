"""Mistakes in what the nodes of a graph tell each other."""
