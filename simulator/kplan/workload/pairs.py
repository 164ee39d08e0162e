"""Pairs of proposers of a workload: fitted on its recording, and entered in its profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from kplan.acceptance.fit import MIN_REQUESTS
from kplan.acceptance.joint import Dependence
from kplan.acceptance.joint_figures import aligned_rows
from kplan.acceptance.joint_file import pair_json
from kplan.acceptance.joint_fit import fit_pair
from kplan.acceptance.judge import kept_rows
from kplan.acceptance.model import TraceModel
from kplan.acceptance.trace import TraceSet
from kplan.errors import InputError
from kplan.files import check_file_name, write_texts
from kplan.workload.profile import load_workload, to_yaml
from kplan.workload.workload import Workload


def fit_pairs(
    traces: TraceSet, models: Mapping[str, TraceModel], *, keep_loopy: bool = False, holdout: bool = True
) -> list[Dependence]:
    """Fit every pair of a lookup and a head that enough aligned requests hold."""
    lookups = [name for name, model in models.items() if model.lookup is not None]
    heads = [name for name, model in models.items() if model.lookup is None]
    found = []
    for one, two in product(lookups, heads):
        if traces.proposers[one].seen is not None or traces.proposers[two].seen is not None:
            continue  # steps of a server that ran one of them say nothing of both at one position
        rows = np.intersect1d(kept_rows(traces, keep_loopy), aligned_rows(traces, one, two))
        if len(rows) >= MIN_REQUESTS:
            found.append(fit_pair(traces, one, two, models=models, keep_loopy=keep_loopy, holdout=holdout))
    return found


def add_pairs(profile: Path, pairs: Iterable[Dependence]) -> list[Path]:
    """Write NAME-A+B.json beside a workload's profile and enter it there; returns the files written.

    Raises:
        InputError: the profile is not there or bad, it has no model of a proposer, or cannot be written.
    """
    pairs = list(pairs)
    workload = holding(profile, [name for pair in pairs for name in (pair.follower, pair.leader)])
    for name in (workload.name, *(pair.name for pair in pairs)):
        check_file_name("name of the workload", name)
    entries, texts = dict(workload.pairs), dict[Path, str]()
    for pair in pairs:
        path = profile.parent / f"{workload.name}-{pair.name}.json"
        entries[pair.name] = path
        texts[path] = pair_json(pair)
    if not texts:
        return []
    names = {proposer: Path(str(file)).name for proposer, file in workload.models.items()}
    write_texts({profile: to_yaml(replace(workload, pairs=entries), names)} | texts)
    return [*texts, profile]


def holding(profile: Path, proposers: Iterable[str]) -> Workload:
    """The workload of a profile that has a model of each of ``proposers``.

    Raises:
        InputError: the profile is not there or bad, or it has no model of a proposer.
    """
    workload = load_workload(profile)
    for proposer in proposers:
        if proposer not in workload.models:
            have = f"{profile} has {', '.join(sorted(workload.models))}"
            raise InputError("--proposer", proposer, have, "fit its model first")
    return workload


def report_lines(pair: Dependence) -> list[str]:
    """How well a fitted dependence does: a line per figure."""
    lines = [
        f"{pair.name}: {pair.follower} follows {pair.leader}, classes shared {pair.class_share:g}, windows "
        f"matched {pair.window_share:g}, depth {pair.depth}"
    ]
    for part in ("in_sample", "holdout"):
        lines += [
            f"{part.replace('_', ' ')} {row['figure']}: recorded {row['recorded']:.3f}, "
            f"model {row['model']:.3f}, independent {row['independent']:.3f}"
            for row in pair.facts.get(part, ())
        ]
    return lines
