"""What a value is, as rules ask it."""
