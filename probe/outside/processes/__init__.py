"""What /proc says of a process, its threads and children."""
