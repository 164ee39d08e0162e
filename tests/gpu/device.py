"""What a measurement was made on. ``facts`` needs torch; the rest reads ``nvidia-smi``."""

from __future__ import annotations

import shutil
import subprocess
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FIELDS = (
    "name",
    "driver_version",
    "memory.total",
    "clocks.current.sm",
    "clocks.max.sm",
    "clocks.current.memory",
    "power.limit",
    "temperature.gpu",
)
"""Asked of nvidia-smi; memory in MiB, clocks in MHz, power in W, temperature in degrees Celsius."""

PACKAGES = ("torch", "vllm", "triton")


def read_smi(index: int = 0) -> dict[str, str]:
    """FIELDS of one GPU as nvidia-smi prints them, without units; {} without the command.

    Raises CalledProcessError when the driver does not answer.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return {}
    query = [f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits", f"--id={index}"]
    answer = subprocess.run([command, *query], check=True, capture_output=True, text=True, timeout=30)
    return parse_smi(answer.stdout)


def parse_smi(line: str) -> dict[str, str]:
    """One line of nvidia-smi's CSV. Raises ValueError when it has not one value per field."""
    return dict(zip(FIELDS, (value.strip() for value in line.strip().split(",")), strict=True))


def facts(device: torch.device) -> dict[str, object]:
    """Name, clocks, driver and versions at this moment."""
    import torch

    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    if device.type != "cuda":
        return {"name": "cpu", "threads": torch.get_num_threads(), "versions": versions}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "cuda": torch.version.cuda,
        "versions": versions,
        "nvidia_smi": read_smi(device.index or 0),
    }
