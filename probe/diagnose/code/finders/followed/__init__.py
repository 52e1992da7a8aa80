"""What follows what: copies that follow networks, statistics that follow data, priorities and goals that follow errors and rewards."""
