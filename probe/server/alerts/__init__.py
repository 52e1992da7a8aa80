"""Running recipes while jobs run, incidents, and telling somebody."""
