"""Client of the servers, shared by the `probe` command and `probe.connect`. Runs in the client's process."""
