"""Checks over the whole repository: ``make audit``, ``make coverage``, ``make mutants``."""
