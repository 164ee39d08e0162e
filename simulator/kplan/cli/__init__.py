"""The command line: the only place that prints or exits.

Exit codes: 0 done, 1 the answer is no, 2 bad input (one line on stderr).
"""
