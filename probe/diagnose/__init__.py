"""What is wrong with a process: evidence, gathered; verdicts, judged from it.

Runs in the server and, where there is none, in the command.
"""
