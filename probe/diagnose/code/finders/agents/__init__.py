"""Mistakes of agents that learn from what they did."""
