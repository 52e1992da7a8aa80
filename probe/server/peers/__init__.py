"""Discovery of, and requests to, the servers of other hosts."""
