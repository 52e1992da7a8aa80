"""The recordings of this host: registry, sealing, pruning, and facts about them."""
