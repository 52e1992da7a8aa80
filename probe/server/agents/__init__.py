"""Requests to the agents of live processes."""
