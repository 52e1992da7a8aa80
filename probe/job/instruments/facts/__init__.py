"""Facts about the run: model, hyperparameters, memory."""
