"""The physical coefficients that measured steps can tell, each with the sentence for when they cannot.

A coefficient is one factor on figures that rows of one server cannot tell apart (the fixed times of all
kernels, for example), so a fit starts at 1: the base calibration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

from kplan.latency.fit_figures import figures_of
from kplan.latency.observed import Observation, Served
from kplan.latency.ops import gemm_fit
from kplan.profiles import Calibration, DrafterKind, Dtype

HOST_WIDTH = log(5.0)
"""What is known of a host time before rows are seen: CPUs and engine releases differ by a factor of 5."""

GPU_WIDTH = 1.0
"""The same of an efficiency or a kernel's fixed time: a factor of e."""

TIMES = 50.0
"""A time may end this many times longer or shorter than the base's."""

SHARE_LOW = 0.02
"""An efficiency may fall to this; its upper bound is 1."""

CPU_SHARE_LOW = 0.0002
"""The same of a CPU: one without the instructions that the peak is of (AVX-512 bfloat16) emulates them; 0.005
was measured."""


@dataclass(frozen=True)
class Coefficient:
    """One factor.

    Attributes:
        name: for people.
        paths: figures of the calibration that it multiplies; one may be in several coefficients.
        share: an efficiency (at most 1) rather than a time.
        missing: the regime that the rows lack where they do not tell it.
        required: without it a calibration of this GPU cannot price larger loads, so its absence is refused.
        cpu: of a CPU, whose efficiency may be far lower.
    """

    name: str
    paths: tuple[str, ...]
    missing: str
    share: bool = False
    required: bool = False
    cpu: bool = False

    @property
    def host(self) -> bool:
        """A time of the host rather than of the GPU."""
        return self.paths[0].startswith("host.")

    @property
    def width(self) -> float:
        """How far off the base it may be, in log."""
        return HOST_WIDTH if self.host else GPU_WIDTH

    def bounds(self, base: Calibration) -> tuple[float, float]:
        """Lowest and highest factor."""
        values = [figures_of(base)[path].value for path in self.paths]
        if not self.share:
            return 1.0 / TIMES, TIMES
        return (CPU_SHARE_LOW if self.cpu else SHARE_LOW) / min(values), 1.0 / max(values)


def coefficients(
    served: Served, base: Calibration, rows: Sequence[Observation], held: frozenset[str]
) -> list[Coefficient]:
    """Those that ``rows`` might tell; figures in ``held`` were fitted otherwise and stay."""
    priced = gemm_fit(base, served.hardware, served.model.weight_dtype)
    gemm = "gemm_fp8" if priced is base.gemm_fp8 else "gemm"
    attention = "attention_fp8" if served.model.kv_dtype is Dtype.FP8 and base.attention_fp8 else "attention"
    ridge, most = ridge_tokens(served, base), max(row.verified_tokens for row in rows)
    if most > ridge:
        slope = f"rows with batch x (K + 1) > {ridge:.0f} are too few or too alike"
    else:
        slope = f"no row with batch x (K + 1) > {ridge:.0f} (the largest is {most:.0f})"
    batches = sorted({round(row.batch) for row in rows})
    if len(batches) == 1:
        requests = f"all rows at one concurrency ({batches[0]})"
    else:
        requests = "the host's time per request stays hidden behind the GPU, or too small to see"
    contexts = sorted({round(row.context) for row in rows if row.context})
    seen = f"{contexts[0]} to {contexts[-1]} tokens" if contexts else "none"
    lookups = any(_looks_up(served, proposer) for proposer in {row.proposer for row in rows})
    found = [
        Coefficient(
            "memory bandwidth",
            (f"{gemm}.bandwidth_eff",),
            "rows of small batches do not dominate: the memory-bound time of a step is not identified",
            share=True,
        ),
        Coefficient(
            "compute rate",
            (f"{gemm}.flops_eff",),
            f"{slope}: the compute-bound slope is not identified",
            share=True,
            required=True,
        ),
        Coefficient(
            "attention bandwidth",
            (f"{attention}.bandwidth_eff",),
            f"contexts ({seen}) differ too little: the cost of a context token is not identified",
            share=True,
        ),
        Coefficient(
            "kernel launches",
            (f"{gemm}.t0_s", f"{attention}.t0_s", "elementwise.t0_s"),
            "fixed kernel times cannot be told from the time to read the weights",
        ),
        Coefficient(
            "host per step",
            ("host.step_s",),
            "no row shows the host's time per step: it hides behind the GPU",
        ),
        Coefficient(
            "exposed host per step", ("host.exposed_s",), "the gap between steps is too small to be seen"
        ),
        Coefficient(
            "host per request",
            # a lookup's own time per request shows in the same rows and grows alike
            ("host.request_s", "host.lookup_request_s") if lookups else ("host.request_s",),
            f"{requests}: the cost per request is not identified",
            required=len(batches) == 1,
        ),
        *_drafting(served, base, rows),
    ]
    if served.hardware.is_host:  # its kernels begin on the host's time, and nothing hides the scheduler
        found = [
            replace(c, cpu=True) for c in found if c.name not in ("kernel launches", "exposed host per step")
        ]
    return [c for c in found if not held.intersection(c.paths)]


def _drafting(served: Served, base: Calibration, rows: Sequence[Observation]) -> list[Coefficient]:
    found = []
    for proposer in sorted({row.proposer for row in rows if row.proposer is not None and row.k > 0}):
        drafter = served.drafter(proposer)
        assert drafter is not None
        ks = sorted({row.k for row in rows if row.proposer == proposer and row.k > 0})
        at = f"rows of {proposer} at K = {', '.join(map(str, ks))}"
        if drafter.kind is DrafterKind.LOOKUP:
            missing = f"{at} do not tell the lookup's time per context token"
            found.append(Coefficient("lookup per token", ("host.lookup_token_s",), missing))
            continue
        path = f"host.pass_s.{proposer}"
        if path not in figures_of(base) and drafter.kind is DrafterKind.MODEL:
            path = "host.layer_s"
        figures = figures_of(base)
        passes = tuple(one for one in (path,) if one in figures)
        step = tuple(one for one in ("host.draft_step_s",) if one in figures)
        if passes or step:  # their sum shows first, and between several K what of it no pass takes
            missing = f"{at} do not tell the time of a drafter pass"
            found.append(Coefficient(f"pass of {proposer}", passes + step, missing))
        if passes and step:
            missing = f"{at} do not tell the time of drafting per step from that of a pass"
            found.append(Coefficient("drafting per step", step, missing))
        found.append(
            Coefficient(
                "verification per request",
                ("host.verify_request_s",),
                f"{at} do not tell the host's time per verifying request",
            )
        )
    unique: dict[tuple[str, ...], Coefficient] = {}
    for coefficient in found:
        unique.setdefault(coefficient.paths, coefficient)
    return list(unique.values())


def _looks_up(served: Served, proposer: str | None) -> bool:
    drafter = served.drafter(proposer)
    return drafter is not None and drafter.kind is DrafterKind.LOOKUP


def ridge_tokens(served: Served, base: Calibration) -> float:
    """Tokens of a step above which reading the weights takes less time than multiplying by them.

    A routed layer reads all its experts by then, and multiplies by the active ones.
    """
    model, hardware = served.model, served.hardware
    fit = gemm_fit(base, hardware, model.weight_dtype)
    compute = hardware.peak(model.weight_dtype).value * fit.flops_eff.value
    read = hardware.bandwidth_bytes_s.value * fit.bandwidth_eff.value
    held = sum(count * matmul.weight_bytes(model.weight_dtype) for count, matmul in model.decoder.matmuls())
    active = 0 if model.decoder.moe is None else model.decoder.moe.active
    multiplied = sum(
        block.layers
        * (sum(one.params for one in block.matmuls) + active * sum(one.params for one in block.routed))
        for block in model.decoder.blocks()
    )
    return compute * held / (2.0 * read * multiplied)
