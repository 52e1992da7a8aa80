"""One file for each command of `probe`."""
