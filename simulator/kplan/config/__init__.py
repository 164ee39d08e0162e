"""Frozen schemas of the files that a user writes, and of ``plan.json``."""
