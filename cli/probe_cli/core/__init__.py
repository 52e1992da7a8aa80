"""Shared by all commands: session, arguments, direct access to processes, terminal."""
