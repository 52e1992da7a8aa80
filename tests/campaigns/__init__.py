"""Campaigns: long randomized searches for faults, each a program with a seed that reproduces it.

`tests/run --campaign` lists them, `tests/run --campaign NAME` runs one. They are not part of the daily run:
each fault they find gets a small regression test there.
"""
