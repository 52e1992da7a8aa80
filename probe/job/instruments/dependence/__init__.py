"""Checks that a model's outputs depend on the right inputs, and on no others."""
