"""How a job of many ranks is: collectives, stragglers, deaths."""
