"""Watching: stalled and slow jobs, how processes ended, what the kernel did to them."""
