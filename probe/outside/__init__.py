"""Attaches to running processes, and reads them from outside.

Runs in the command and in the server, never in the job. Standard library; the libraries for stacks and
injection are imported inside functions or in child processes.
"""
