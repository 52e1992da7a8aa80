"""Fleet: questions over all runs of an archive, as DuckDB in a disposable worker or as Ray tasks."""
