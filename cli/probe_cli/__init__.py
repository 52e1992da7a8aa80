"""The command `probe`: words in, questions to the server, answers on stdout.

Results go to stdout and nothing else does. Main thread of the command's own
process; may import the standard-library layers of `probe` and typer at module
level, and httpx and duckdb inside the functions that need them, because every
import here is waited for by a person.
"""
