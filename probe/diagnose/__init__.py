"""Diagnosis of processes and jobs: gathers evidence and judges it into verdicts.

Runs in the server or, without one, in the command.
"""
