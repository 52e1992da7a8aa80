"""The server: recordings, queries, watch, alerts, HTTP; see ARCHITECTURE.md."""
