"""Follows gradients to the parameters: from backward to the optimizer's step to the next forward."""
