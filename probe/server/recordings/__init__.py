"""The recordings of this host: which there are, sealing, pruning, and facts about them."""
