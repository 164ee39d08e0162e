"""Coverage-guided fuzzing of a group of readers, in a process of its own.

The first byte of an input says which reader of the group reads the rest.

Whatever is neither read nor refused in one line, takes longer than TIMEOUT_S or more memory than
MOST_GROWTH_MIB ends the process, and libFuzzer keeps the input as a file to reproduce it with.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

from tests.soak.fuzz_limits import GROUPS, MOST_BYTES, MOST_GROWTH_MIB, TIMEOUT_S

INSTRUMENTED = ["kplan", "yaml", "prometheus_client"]
"""Packages whose branches are counted; others are not written in Python, or are only called."""


def with_kernels() -> list[str]:
    """Modules of kplan with compiled loops: numba refuses bytecode that counts its branches."""
    root = Path(__file__).parents[2] / "simulator"
    compiled = [one for one in sorted(root.rglob("*.py")) if "jit" in one.read_text(encoding="utf-8")]
    return [".".join(one.relative_to(root).with_suffix("").parts) for one in compiled]


def main() -> None:
    """Arguments: group, seconds, folder for the corpus, prefix of what is kept, file for counts."""
    group, seconds, corpus, kept, counts = sys.argv[1:]
    with atheris.instrument_imports(INSTRUMENTED, with_kernels(), enable_loader_override=False):
        from tests.faults.mutate import mutate
        from tests.faults.readers import READERS
    readers = READERS[int(group) :: GROUPS]
    folder = Path(tempfile.mkdtemp(prefix="kplan-fuzz-"))
    tried = read = 0
    for place, reader in enumerate(readers):
        for number, seed in enumerate(reader.seeds):
            (Path(corpus) / f"{place}-{number}").write_bytes(bytes([place]) + seed)
            reader.try_bytes(seed, folder)  # kernels and caches are not what an input takes

    base_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def once(data: bytes) -> None:
        nonlocal tried, read
        tried += 1
        read += readers[data[0] % len(readers)].try_bytes(data[1:], folder) if data else 0
        if tried % 20 == 0:
            tell()

    def tell() -> None:
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base_kib) / 1024
        Path(counts).write_text(
            json.dumps({"inputs": tried, "read": read, "peak_mib": round(grown)}), encoding="utf-8"
        )

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        """Half by libFuzzer, half as files are damaged."""
        if not data or seed % 2:
            return bytes(atheris.Mutate(data, most))
        return data[:1] + mutate(data[1:], Random(seed))[: most - 1]

    limit_mib = base_kib // 1024 + MOST_GROWTH_MIB
    atheris.Setup(
        [
            sys.argv[0], corpus, f"-max_total_time={seconds}", f"-timeout={TIMEOUT_S}",
            f"-rss_limit_mb={limit_mib}",
            f"-max_len={MOST_BYTES}", f"-artifact_prefix={kept}", "-print_final_stats=0", "-verbosity=0",
        ],
        once,
        custom_mutator=mutated,
    )  # fmt: skip
    tell()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
