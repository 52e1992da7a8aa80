"""Finders for what is done to inputs, and how they are scored, where a model is judged."""
