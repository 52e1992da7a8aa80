"""The command `probe`: arguments in, requests to the server, results on stdout.

Main thread of the command's own process. May import the standard-library layers
of `probe` and typer at module level, and httpx and duckdb only inside functions,
because a person waits for every import.
"""
