"""Other hosts' servers: finding them, and asking them over HTTP."""
