"""Mistakes that show in what a program computes, whatever it is written like."""
