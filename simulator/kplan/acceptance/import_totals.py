"""Importers of totals: one JSON object for a whole run, in which no request and no step is kept.

- **vllm bench serve** (``--save-result``): ``spec_decode_per_position_acceptance_rates``, marginal shares of
  the drafts (not percents, unlike ``spec_decode_acceptance_rate``), with ``spec_decode_num_drafts``,
  ``spec_decode_draft_tokens`` and ``spec_decode_accepted_tokens``, which must agree with them.
- **aiperf** (``profile_export_aiperf.json``): ``pooled_spec_decode_acceptance_histogram``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from kplan.acceptance.collect import ImportOptions
from kplan.acceptance.columns import Row
from kplan.acceptance.figures import AcceptanceFigures, FiguresKind
from kplan.acceptance.import_served import histogram_of
from kplan.acceptance.jsonl import count, value
from kplan.acceptance.trace import MAX_K
from kplan.errors import InputError
from kplan.provenance import Kind, Provenance

BENCH_KEY = "spec_decode_per_position_acceptance_rates"
AIPERF_KEY = "pooled_spec_decode_acceptance_histogram"
_TOLERANCE = 1e-6


def bench_figures(record: dict[str, Any], path: Path, options: ImportOptions) -> AcceptanceFigures:
    """Figures of a result of ``vllm bench serve``.

    Raises:
        InputError: one line with file and key: a share out of range (percents), shares whose sum is not the
            accepted drafts per step, counts that contradict each other.
    """
    where = Row(path.name, 1)
    shares = value(record, BENCH_KEY, where)
    if not isinstance(shares, list) or not 1 <= len(shares) <= MAX_K:
        raise InputError(where.at(BENCH_KEY), str(shares)[:60], "a list with a share per draft is needed")
    for i, share in enumerate(shares):
        number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if not number or not 0.0 <= share <= 1.0:
            fix = "they are percents: divide by 100" if number and 1.0 < share <= 100.0 else ""
            raise InputError(where.at(BENCH_KEY, i), str(share)[:60], "a share in 0..1 is needed", fix)
    steps, drafted, accepted = (
        count(record, f"spec_decode_{key}", where, low)
        for key, low in (("num_drafts", 1), ("draft_tokens", 1), ("accepted_tokens", 0))
    )
    if not math.isclose(math.fsum(shares), accepted / steps, abs_tol=_TOLERANCE):
        bound = f"accepted_tokens / num_drafts is {accepted / steps:.6g}"
        fix = "vLLM's shares are marginal: per step with a draft"
        raise InputError(where.at(BENCH_KEY), f"a sum of {math.fsum(shares):.6g}", bound, fix)
    if drafted > steps * len(shares):
        bound = f"{steps} drafts of {len(shares)} tokens give {steps * len(shares)} at most"
        raise InputError(where.at("spec_decode_draft_tokens"), drafted, bound)
    notes = ["steps without a draft are not counted"]
    if drafted < steps * len(shares):
        notes.append(
            f"{drafted / steps:.3g} drafts a step on average, not {len(shares)}: the shares of the deeper "
            "drafts count steps that never had them, and are lower bounds"
        )
    return AcceptanceFigures(
        proposer=options.needed_proposer("vllm bench serve"),
        kind=FiguresKind.MARGINAL,
        recorded_k=len(shares),
        values=tuple(map(float, shares)),
        steps=steps,
        requests=count(record, "completed", where, 0) if "completed" in record else None,
        drafted=drafted,
        provenance=Provenance(Kind.MEASURED, f"vllm bench serve, {path.name}", "totals of a run"),
        notes=tuple(notes),
    )


def aiperf_figures(record: dict[str, Any], path: Path, options: ImportOptions) -> AcceptanceFigures:
    """Figures of aiperf's summary. Raises InputError with file and key."""
    where = Row(path.name, 1)
    steps = histogram_of(value(record, AIPERF_KEY, where), where, AIPERF_KEY, options.recorded_k or MAX_K)
    k = options.recorded_k or len(steps) - 1
    if k < 1:
        fix = "give --recorded-k"
        raise InputError(where.at(AIPERF_KEY), "no accepted draft", "K cannot be told from it", fix)
    notes = ["steps without a draft are not counted"]
    if options.recorded_k is None:
        notes.append(f"K is taken to be the most drafts that a step accepted, {k}")
    return AcceptanceFigures(
        proposer=options.needed_proposer("aiperf"),
        kind=FiguresKind.HISTOGRAM,
        recorded_k=k,
        values=(*map(float, steps), *[0.0] * (k + 1 - len(steps))),
        steps=int(steps.sum()),
        requests=None,
        drafted=None,
        provenance=Provenance(Kind.MEASURED, f"aiperf summary, {path.name}", "totals of a run"),
        notes=tuple(notes),
    )
