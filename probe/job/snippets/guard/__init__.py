"""Guard: protects a job from a snippet's mistakes. The snippet is classified before it runs (`classify`, by
the lists of `rules`) and watched while it runs (`watching`)."""
