"""Attaching to a running process, and reading one from outside.

Runs in the command and in the server, never in the job. Standard library; the stack and
injection libraries inside functions or in processes of their own.
"""
