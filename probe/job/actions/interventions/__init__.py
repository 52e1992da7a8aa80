"""Actions that stand between gradients and the optimizer's step."""
