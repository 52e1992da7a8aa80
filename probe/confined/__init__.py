"""SQL from outside in a process that may only read what it was given: sandbox, checks, encoded results."""
