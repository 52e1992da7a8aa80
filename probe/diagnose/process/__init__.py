"""How one process is: evidence from stacks and /proc, and the rules that judge it."""
