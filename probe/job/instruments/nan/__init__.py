"""NaN and infinity: detects one, and traces where it came from."""
