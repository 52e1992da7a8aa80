"""Rows of words: what is generated of them, their places, what reads them, and which is preferred."""
