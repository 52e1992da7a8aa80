"""Checkpoints: taking the state, writing it, verifying it; on one rank or on all."""
