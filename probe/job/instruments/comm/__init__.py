"""Collectives: calls, times, and torch's Flight Recorder."""
