"""Stacks of another process, Python and native."""
