"""Checkpoint files: format and loading."""
