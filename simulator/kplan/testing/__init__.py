"""The laws that every K-policy must keep, built in or a third party's.

In a test of one's own:

    import pytest
    from kplan.testing import LAWS, Law

    @pytest.mark.parametrize("law", LAWS, ids=str)
    def test_my_policy(law: Law) -> None:
        law.check("my_policy.py:MyPolicy")

``check_policy("my_policy.py:MyPolicy")`` checks them all at once, ``kplan policies check`` prints them.
"""

from kplan.testing.check import Finding, check_policy, examine, find
from kplan.testing.laws import LAWS, Law
from kplan.testing.run import steps_per_s
from kplan.testing.subject import spec_of

__all__ = ["LAWS", "Finding", "Law", "check_policy", "examine", "find", "spec_of", "steps_per_s"]
