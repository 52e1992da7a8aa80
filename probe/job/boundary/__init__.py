"""Between two steps: the safe point, and steps that all ranks agree on."""
