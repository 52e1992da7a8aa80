"""One module per command, named in `probe_cli.command_table` and imported on demand.

Each has `command`, whose signature and docstring become its `--help`, and `EXAMPLES`, which appear in
`--help` and docs/cli.md and are run by tests/docs (PID and JOB stand for a job's, ID for an action's). Runs
in the command's main thread; libraries other than typer are imported inside functions.
"""
