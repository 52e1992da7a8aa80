"""The agent: what lives in the training process; see ARCHITECTURE.md."""
