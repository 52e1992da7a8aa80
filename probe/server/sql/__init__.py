"""SQL over recordings: statements, the tables they see, and the disposable processes in which they run."""
