"""The command `probe`: arguments in, requests to the server, results on stdout.

Runs in the main thread of the command's own process. May import the standard-library
layers of `probe` and typer at module level; httpx and duckdb only inside functions,
because every import delays the command.
"""
