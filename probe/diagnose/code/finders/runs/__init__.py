"""Mistakes of a training from run to run and from step to step: what is begun again, kept, attacked or judged."""
