"""SQL from outside in a process that may only read files given to it: sandbox, checks, encoded results."""
