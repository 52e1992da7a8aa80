"""Finders of mistakes with the weights of networks."""
