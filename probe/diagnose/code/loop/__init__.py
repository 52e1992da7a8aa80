"""Rules of the training loop: order of calls, losses, schedules, settings and states."""
