"""Mistakes in how rows are read, drawn, joined and split."""
