"""Which engines an interpreter has, and their releases (runs in it; its standard library alone).

One JSON object: {"vllm": "0.32.0+cpu", ...}; "" for an engine whose release is not known.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from importlib.util import find_spec

ENGINES = ("vllm", "sglang")


def release(package: str) -> str:
    """Version of the distribution that brought the package; builds for one device have names of their own."""
    for name in (package, *metadata.packages_distributions().get(package, ())):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


if __name__ == "__main__":
    found = {package: release(package) for package in ENGINES if find_spec(package) is not None}
    sys.stdout.write(json.dumps(found) + "\n")
