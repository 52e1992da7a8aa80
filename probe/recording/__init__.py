"""Recordings: how a run is written and read; see ARCHITECTURE.md."""
