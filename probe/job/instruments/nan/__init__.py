"""NaN and infinity: detecting one, and tracing where it came from."""
