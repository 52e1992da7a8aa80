"""Pictures that change their size, and what lies in them."""
