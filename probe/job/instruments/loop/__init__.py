"""The training loop: batches, forward, losses, optimizer steps, logged scalars."""
