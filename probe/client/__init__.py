"""Asking servers: what the command and `probe.connect` share. Runs in the process that asks."""
