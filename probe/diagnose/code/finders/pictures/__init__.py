"""Mistakes with pictures, sounds and what is generated."""
