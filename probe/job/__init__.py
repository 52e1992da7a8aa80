"""All that lives in the training process. Never imports `server`, `outside` or `diagnose`."""
