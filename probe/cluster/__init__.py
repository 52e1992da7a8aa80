"""All ranks at once: other hosts, fan-out, merging stacks, acting together. Below the server."""
