"""What is written during a run and how it is read again; see ARCHITECTURE.md."""
