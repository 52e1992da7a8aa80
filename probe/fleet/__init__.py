"""Fleet: queries over all runs of an archive, in disposable DuckDB workers or as Ray tasks."""
