"""Attaching: starting an agent in a running process."""
