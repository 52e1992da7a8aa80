"""The live page of `probe JOB web`: its files, and the small HTTP server in the command that serves them."""
