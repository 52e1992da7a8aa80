"""The job's own options."""

LEARNING_RATE = 0.05
