"""One module per command, named in `probe_cli.command_table` and imported when it is needed.

Each holds `command`, whose signature and docstring are what Typer shows, and `EXAMPLES`, which are in its
`--help` and in docs/cli.md and are run by tests/docs (PID and JOB stand for those of a job, ID for that of an
action). The command's main thread; libraries other than typer are imported inside functions.
"""
