"""Whether a model's outputs depend on what they should, and only on that."""
