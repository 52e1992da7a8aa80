"""Campaigns: long searches for faults at random, each a program with a seed that repeats it.

`tests/run --campaign` lists them, `tests/run --campaign NAME` runs one. They are no part of the daily
run: what one of them finds gets a small test of its own there.
"""
