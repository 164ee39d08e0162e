"""The K-policies that come with kplan, one rule per module.

They see only :mod:`kplan.policy`, so a policy of one's own is written the same way. Bad constructor values
raise ``ValueError`` with one line that names the value and the bound.
"""
