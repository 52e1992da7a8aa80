"""What is looked at and typed live: the prompts for SQL and for Python, completion, `probe top`."""
