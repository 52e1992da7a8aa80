"""Bundles: one file with everything recorded about a job, to send to a colleague.

Runs in the client's process."""
