"""Make a workload: fit one on recorded traces, or adapt a trace model to published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kplan.acceptance.adapt import match_position_median, match_walk
from kplan.acceptance.judge import fit_judged
from kplan.acceptance.model import TraceModel
from kplan.acceptance.model_file import to_json
from kplan.acceptance.trace import TraceSet
from kplan.errors import InputError
from kplan.files import check_file_name, made_folder, write_texts
from kplan.provenance import Kind, Provenance
from kplan.workload.figures import lenders
from kplan.workload.lengths import fit_lengths
from kplan.workload.profile import to_yaml
from kplan.workload.workload import Workload

_SEED = 20_260_104
_SAMPLE = 4096


def build_workload(
    traces: TraceSet,
    name: str,
    summary: str,
    *,
    target: str = "",
    proposers: Sequence[str] | None = None,
    keep_loopy: bool = False,
    holdout: bool = True,
) -> tuple[Workload, dict[str, TraceModel]]:
    """Fit lengths and trace models of ``proposers`` (None: every recorded one, an alias not twice).

    Output lengths are those of the proposer with the most rows of the request's own generation. Loopy rows
    are left out of lengths and models unless ``keep_loopy``.

    Raises:
        InputError: too few requests, or a proposer that was not recorded.
    """
    kept = np.arange(len(traces)) if traces.loopy is None or keep_loopy else np.flatnonzero(~traces.loopy)
    reference = max(traces.proposers.values(), key=lambda trace: int(trace.aligned.sum()))
    note = f"{len(traces) - len(kept)} loopy rows (degenerate repetition to the length limit) left out"
    lengths = fit_lengths(
        traces.prompt_len[kept],
        reference.output_len[kept],
        Provenance(Kind.FITTED, f"{traces.provenance.source}, {len(kept)} requests", note),
    )
    models = {
        proposer: fit_recording(traces, proposer, keep_loopy=keep_loopy, holdout=holdout)
        for proposer in (_recorded(traces) if proposers is None else proposers)
    }
    workload = Workload(
        name=name,
        target=target,
        summary=summary or f"fitted on {traces.provenance.source}",
        lengths=lengths,
        models={},
        missing={},
        provenance=Provenance(Kind.FITTED, traces.provenance.source, traces.provenance.note),
    )
    return workload, models


def fit_recording(
    traces: TraceSet,
    proposer: str,
    *,
    keep_loopy: bool = False,
    holdout: bool = True,
    like: str | None = None,
) -> TraceModel:
    """Fit a recording and judge the fit; one of a server's steps borrows from the models that ship.

    Args:
        like: WORKLOAD-PROPOSER that a recording of steps borrows from; None: the one that shows it best.

    Raises:
        InputError: as of :func:`kplan.acceptance.judge.fit_judged`, an unknown ``like``, or a recording of
            every position, which borrows nothing.
    """
    trace = traces.proposers.get(proposer)
    if trace is None or trace.seen is None:
        if like is not None:
            raise InputError("--like", like, "a recording of every position borrows nothing", "leave it out")
        return fit_judged(traces, proposer, keep_loopy=keep_loopy, holdout=holdout)
    return fit_judged(traces, proposer, keep_loopy=keep_loopy, holdout=holdout, lent=lenders(proposer, like))


def _recorded(traces: TraceSet) -> list[str]:
    """Proposers of the set; of several names for one trace the first."""
    first: dict[int, str] = {}
    for name, trace in traces.proposers.items():
        first.setdefault(id(trace), name)
    return list(first.values())


def write_workload(workload: Workload, models: Mapping[str, TraceModel], folder: Path) -> list[Path]:
    """Write NAME.yaml and NAME-PROPOSER.json into ``folder`` (made if need be): all, or none.

    Raises:
        InputError: the folder cannot be written.
    """
    for what, name in (("name", workload.name), *(("proposer", proposer) for proposer in models)):
        check_file_name(f"{what} of the workload", name)
    names = {proposer: f"{workload.name}-{proposer}.json" for proposer in models}
    profile = folder / f"{workload.name}.yaml"
    texts = {profile: to_yaml(workload, names)}
    texts |= {folder / names[proposer]: to_json(model) for proposer, model in models.items()}
    with made_folder("output folder", folder):
        write_texts(texts)
    return [*(folder / name for name in names.values()), profile]


def adapt_model(
    model: TraceModel,
    proposer: str,
    source: str,
    lengths: Workload,
    by_k: Mapping[int, float],
    position_median: float | None,
) -> TraceModel:
    """A model of ``proposer`` that has published figures; all else is borrowed from ``model`` and said so.

    Args:
        by_k: K -> acceptance length along the walk; empty when ``position_median`` is given.
        position_median: the median request's mean over its positions.

    Raises:
        InputError: both or neither given, or figures out of reach.
    """
    if bool(by_k) == (position_median is not None):
        raise InputError(
            "figures", "both" if by_k else "none", "acceptance lengths or a position median", "give one kind"
        )
    _, output_len = lengths.sample_lengths(_SEED, _SAMPLE)
    origin = f"{model.proposer} model fitted on {model.provenance.source}"
    facts: dict[str, Any]
    if position_median is not None:
        adapted, quartiles = match_position_median(model, position_median, output_len)
        facts = {"published_position_median": position_median}
        facts["reached_position_quartiles"] = [round(float(q), 4) for q in quartiles]
        borrowed = "shape by depth, persistence and spread between requests"
        known_k = model.known_k
    else:
        adapted, reached = match_walk(model, by_k, output_len)
        facts = {
            "acceptance_lengths": [
                {"k": k, "published": by_k[k], "reached": round(reached[k], 4)} for k in sorted(by_k)
            ]
        }
        borrowed = f"depths up to {min(by_k)} shifted alike; persistence and spread between requests"
        known_k = max(by_k)
    note = f"{borrowed} assumed as in the {origin}"
    return replace(
        adapted,
        proposer=proposer,
        known_k=known_k,
        provenance=Provenance(Kind.PUBLISHED, source, note),
        facts=facts,
    )
