"""The profile of the card at hand: a shipped one by its name, or a new one from its datasheet.

    python -m tests.gpu.hardware --hardware h200
    python -m tests.gpu.hardware --hardware my-card.yaml --name my-card --source "datasheet of the card" \\
        --bandwidth-gb-s 864 --peak-tflops 181

Prints the profile's name. Memory is what the driver lists; bandwidth and peaks are the maker's, because
efficiencies are shares of them: a measured copy (``*_copy_*.csv``) stays below.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kplan.errors import InputError
from kplan.files import write_text
from kplan.profiles import load_hardware
from tests.gpu.device import read_smi

MIB = 1024**2
GIGA, TERA = 1e9, 1e12


def document(
    name: str, smi: Mapping[str, str], source: str, published: Mapping[str, float | None]
) -> dict[str, Any]:
    """The content of the YAML.

    Args:
        smi: what nvidia-smi says (:func:`tests.gpu.device.read_smi`).
        source: the datasheet's title.
        published: bandwidth_bytes_s, peak_flops, peak_flops_fp8, link_bytes_s; None for what it has not.
    """
    memory = {
        "value": float(smi["memory.total"]) * MIB,
        "kind": "measured",
        "source": "driver",
        "note": f"{smi['memory.total']} MiB",
    }
    figures = {
        key: {"value": value, "kind": "published", "source": "datasheet"}
        for key, value in published.items()
        if value is not None
    }
    return {
        "name": name,
        "summary": f"{smi['name']}, not calibrated",
        "memory_bytes": memory,
        **figures,
        "sources": {"datasheet": source, "driver": f"nvidia-smi, driver {smi['driver_version']}"},
        "provenance": {"kind": "published", "source": source},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Write the profile when its figures are given; print its name either way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--hardware", required=True, help="profile name, or the YAML to read or write")
    parser.add_argument("--name", help="name of the new profile")
    parser.add_argument("--bandwidth-gb-s", type=float, help="device memory, GB/s (10^9)")
    parser.add_argument("--peak-tflops", type=float, help="bf16, dense, TFLOP/s")
    parser.add_argument("--peak-fp8-tflops", type=float, help="fp8, dense, TFLOP/s")
    parser.add_argument("--link-gb-s", type=float, help="to other GPUs, one direction, GB/s")
    parser.add_argument("--source", help="title of the datasheet")
    given = parser.parse_args(argv)
    try:
        if given.name is not None:
            _write(given)
        print(load_hardware(given.hardware).name)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _write(given: argparse.Namespace) -> None:
    needed = ("bandwidth_gb_s", "peak_tflops", "source")
    for flag in needed:
        if getattr(given, flag) is None:
            raise InputError(f"--{flag.replace('_', '-')}", "nothing", "a new profile needs it", "give it")
    smi = read_smi()
    if not smi:
        raise InputError(
            "nvidia-smi", "no such command", "tells the memory of the card", "install its driver"
        )
    published = {
        "bandwidth_bytes_s": given.bandwidth_gb_s * GIGA,
        "peak_flops": given.peak_tflops * TERA,
        "peak_flops_fp8": given.peak_fp8_tflops and given.peak_fp8_tflops * TERA,
        "link_bytes_s": given.link_gb_s and given.link_gb_s * GIGA,
    }
    content = document(given.name, smi, given.source, published)
    write_text(yaml.safe_dump(content, sort_keys=False, width=110), Path(given.hardware))


if __name__ == "__main__":
    sys.exit(main())
