"""Frozen schemas of the files that a user writes and of ``plan.json``: a value that does not fit is one line."""
