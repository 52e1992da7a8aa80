"""Statistics of gradients, updates, optimizer states and activations."""
