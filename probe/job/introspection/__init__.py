"""Reading the process's own frames, variables and stacks."""
