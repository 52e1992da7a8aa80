"""What is typed with help: the prompts for SQL and for Python, completion in the shell."""
