"""Archive: recordings of many runs and hosts as one dataset of Parquet files; see docs/archive.md."""
