"""Reading a program's source: mistakes that stand in it, each with its file and line. Pure functions."""
