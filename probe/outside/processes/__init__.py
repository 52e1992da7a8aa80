"""Facts about a process, its threads and its children, from /proc."""
