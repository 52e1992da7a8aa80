"""Rules of data, loaders and evaluation."""
