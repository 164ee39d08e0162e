"""What one input may take, and how many processes share the readers."""

TIMEOUT_S = 10
MOST_BYTES = 2**20
MOST_GROWTH_MIB = 1024
GROUPS = 6
