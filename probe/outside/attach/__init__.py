"""Attaching: starting an agent in a process that runs already."""
