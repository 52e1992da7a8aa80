"""Answers to requests about a job: queries, backtraces, diagnoses, summaries."""
