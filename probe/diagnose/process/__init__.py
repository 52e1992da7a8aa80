"""The state of one process: evidence from stacks and /proc, and the rules that judge it."""
