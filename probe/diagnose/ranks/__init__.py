"""The state of a multi-rank job: collectives, stragglers, deaths."""
