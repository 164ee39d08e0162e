"""What a GPU can do at most, from its datasheet."""

from __future__ import annotations

from dataclasses import dataclass

from kplan.profiles.dtype import Dtype
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
        peak_flops_fp8: the same in fp8; None where it has no fp8 arithmetic (fp8 is then for weights only).
        link_bytes_s: bandwidth of one GPU to its peers, one direction; None when it stands alone.
        is_host: it is the processor that the engine's own code runs on (a CPU), so that no work hides behind
            another's, and no graphs are captured.
        provenance: source of the profile as a whole.
    """

    name: str
    summary: str
    memory_bytes: Figure
    bandwidth_bytes_s: Figure
    peak_flops: Figure
    provenance: Provenance
    peak_flops_fp8: Figure | None = None
    link_bytes_s: Figure | None = None
    is_host: bool = False

    def peak(self, dtype: Dtype) -> Figure:
        """Peak FLOP/s of matrix products whose weights have ``dtype``."""
        if dtype is Dtype.FP8 and self.peak_flops_fp8 is not None:
            return self.peak_flops_fp8
        return self.peak_flops
