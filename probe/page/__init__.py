"""The live page of `probe JOB web`: its files, and the command's small HTTP server for them."""
