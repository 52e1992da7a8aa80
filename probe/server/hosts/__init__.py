"""Multi-rank jobs on several hosts: locating ranks, requests to all of them, coordinated actions."""
