"""Instruments: the hot path, one file per observed part of the job; `installation.py` lists them."""
