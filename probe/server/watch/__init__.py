"""Watching: stalled and slow jobs, ends of processes, OOM kills."""
