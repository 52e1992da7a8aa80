"""Rules of models and loss functions."""
