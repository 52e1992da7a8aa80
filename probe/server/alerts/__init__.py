"""The monitor: recipes while jobs run, incidents, and alerts."""
