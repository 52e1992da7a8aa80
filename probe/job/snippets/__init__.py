"""Snippets of Python in the job: judging, running and cleaning up after them."""
