"""Rules of episodes and of ranks."""
