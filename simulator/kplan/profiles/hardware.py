"""What a GPU can do at most, from its datasheet."""

from __future__ import annotations

from dataclasses import dataclass

from kplan.provenance import Figure, Provenance


@dataclass(frozen=True)
class Hardware:
    """One accelerator.

    Attributes:
        name: profile name, for example ``h100-sxm``.
        summary: one line for listings.
        memory_bytes: device memory a process can use.
        bandwidth_bytes_s: peak device-memory bandwidth.
        peak_flops: peak dense (not sparse) bf16 tensor throughput, FLOP/s.
        provenance: source of the profile as a whole.
    """

    name: str
    summary: str
    memory_bytes: Figure
    bandwidth_bytes_s: Figure
    peak_flops: Figure
    provenance: Provenance
