"""Jobs of many ranks and hosts: who has which rank, asking all of them, acting on all at one step."""
