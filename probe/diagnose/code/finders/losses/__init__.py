"""Mistakes in losses, scores and what episodes are worth."""
