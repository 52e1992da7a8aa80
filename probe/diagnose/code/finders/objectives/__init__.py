"""Finders of mistakes in what a program learns towards: its graphs, likelihoods, tasks and ends."""
