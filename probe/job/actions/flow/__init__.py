"""Pausing, resuming and ending the training."""
