"""Interactive parts: the prompts for SQL and Python, completion, the live view of `probe top`."""
