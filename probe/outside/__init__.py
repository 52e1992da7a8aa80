"""Attaching to a running process, and reading one from outside.

Runs in the command and in the server, never in the job. Standard library; the libraries for stacks and
injection are imported inside functions or in child processes.
"""
