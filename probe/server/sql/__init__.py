"""SQL over recordings: statements, their tables, and the disposable processes that run them."""
