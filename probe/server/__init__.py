"""The server beside the jobs: registry, sealer, query pool, HTTP; see ARCHITECTURE.md."""
