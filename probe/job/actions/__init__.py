"""Everything that can be done to a live job: one file for each action."""
