"""Compare and optimise K-policies on a load."""

from kplan.search.recommend import recommend

__all__ = ["recommend"]
