"""Objects of a program, and what they keep."""
