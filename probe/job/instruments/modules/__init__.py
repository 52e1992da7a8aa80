"""Module calls, and names of modules and parameters."""
