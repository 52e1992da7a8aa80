"""Checkpoint files: their format, and loading them."""
