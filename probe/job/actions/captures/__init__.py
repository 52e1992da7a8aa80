"""Files and rows made on demand: captures, profiles, memory snapshots, batches, watched expressions."""
