"""Finders for pictures, sounds and what is generated: ranges, steps, inverses, pairs."""
