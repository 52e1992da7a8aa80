"""The hot path: one file for each thing watched; `installation.py` lists them."""
