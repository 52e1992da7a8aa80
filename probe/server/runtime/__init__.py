"""Roles, rate limits, tokens, threads and request bodies, for every part of the server."""
