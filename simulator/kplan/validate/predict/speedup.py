"""Throughput with speculation over throughput without, by batch: rows at ``dataset``, ``method``, ``batch``.

Where nothing is recorded of a method on a dataset, its acceptance is inferred from the row at the smallest
batch alone: the log-odds of every draft of a borrowed trace model move by one number until the predicted
speedup is the measured one. That row then is no prediction; the others are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from kplan.acceptance import TraceModel, TraceSet
from kplan.acceptance.adapt import shift_all
from kplan.profiles.schema import Entry
from kplan.validate.predict.bench import (
    Bench,
    Floats,
    Settings,
    bench,
    prediction,
    run,
    settings_of,
    tokens_per_s,
)
from kplan.validate.table import Prediction, PublishedRow, PublishedTable
from kplan.workload import load_workload

MOST_SHIFT = 8.0
"""Log-odds by which acceptance may move at most."""
SHIFT_STEP = 0.005
"""How closely that is found: 0.1% of a speedup."""
UNREACHED = 0.01
"""An inferred speedup further off than this could not be reached."""
REQUESTS = 500
"""Requests that carry an inferred acceptance, as many as the paper's datasets have."""
_SEED = 0


class Method(Entry):
    """A way to draft: kplan's proposer, K, and whose trace model is borrowed where acceptance is inferred."""

    proposer: str
    k: int
    borrow: str = ""


class Dataset(Entry):
    """Fields of the scenario that make the load, and whether acceptance on it is inferred."""

    scenario: dict[str, Any]
    inferred: bool = False


class SpeedupSettings(Settings):
    """Settings of a table of speedups: what its methods and datasets are here."""

    methods: dict[str, Method]
    datasets: dict[str, Dataset]


def predict(table: PublishedTable) -> list[Prediction]:
    """Speedups in the order of the rows.

    Raises:
        InputError: settings that do not fit, or a name without a profile.
    """
    settings = settings_of(table, SpeedupSettings)
    found: dict[int, Prediction] = {}
    for group in _groups(table.rows):
        rows = [table.rows[index] for index in group]
        found |= zip(group, _curve(settings, rows), strict=True)
    return [found[index] for index in range(len(table.rows))]


def _groups(rows: Sequence[PublishedRow]) -> list[list[int]]:
    """Indices of the rows of each dataset and method, the smallest batch first."""
    groups: dict[tuple[object, object], list[int]] = {}
    for index in sorted(range(len(rows)), key=lambda i: float(rows[i].at["batch"])):
        groups.setdefault((rows[index].at["dataset"], rows[index].at["method"]), []).append(index)
    return list(groups.values())


def _curve(settings: SpeedupSettings, rows: Sequence[PublishedRow]) -> list[Prediction]:
    """Predictions of one method on one dataset, by batch."""
    dataset = settings.datasets[str(rows[0].at["dataset"])]
    method = settings.methods[str(rows[0].at["method"])]
    benches = [_bench(settings, dataset, method, int(row.at["batch"])) for row in rows]
    if not dataset.inferred:
        return [prediction(_speedup(each, method.k)) for each in benches]
    traces = _infer(benches[0], method, rows[0].measured)
    found = [_speedup(_with(each, traces), method.k) for each in benches]
    note = f"acceptance inferred from batch {rows[0].at['batch']:g}"
    if abs(found[0][0] / rows[0].measured - 1.0) > UNREACHED:
        note += f", whose {rows[0].measured:g} no acceptance reaches"
    return [
        prediction(each, used_in_fit=row is rows[0], note=note) for each, row in zip(found, rows, strict=True)
    ]


def _bench(settings: SpeedupSettings, dataset: Dataset, method: Method, batch: int) -> Bench:
    return bench(settings, **dataset.scenario, proposer=method.proposer, concurrency=batch, max_k=method.k)


def _speedup(setups: Bench, k: int) -> Floats:
    """(S,) throughput at ``k`` over throughput without speculation."""
    return tokens_per_s(run(setups, f"fixed:{k}")) / tokens_per_s(run(setups, "off"))


def _infer(setups: Bench, method: Method, measured: float) -> list[TraceSet]:
    """Per source of GEMM times, traces under which the predicted speedup is the measured one.

    Where no shift within MOST_SHIFT reaches it, the nearest does.
    """
    scenario = setups[0].scenario
    workload = load_workload(scenario.workload)
    model = workload.model(method.borrow or method.proposer)
    prompt, output = workload.sample_lengths(_SEED, REQUESTS)
    prompt = prompt if scenario.prompt_tokens is None else np.full_like(prompt, scenario.prompt_tokens)
    output = output if scenario.output_tokens is None else np.full_like(output, scenario.output_tokens)

    def traces(shift: float) -> TraceSet:
        return _shifted(model, method.proposer, shift, prompt, output)

    off = tokens_per_s(run(_with(setups, [traces(0.0)] * len(setups)), "off"))

    def excess(source: int, shift: float) -> float:
        one = _with(setups[source : source + 1], [traces(shift)])
        return float(tokens_per_s(run(one, f"fixed:{method.k}"))[0] / off[source]) - measured

    return [traces(_root(partial(excess, source))) for source in range(len(setups))]


def _shifted(
    model: TraceModel, proposer: str, shift: float, prompt: NDArray[np.int32], output: NDArray[np.int32]
) -> TraceSet:
    """Traces of ``model``, called ``proposer``, with the log-odds of all drafts moved by ``shift``."""
    moved = shift_all(model, shift)
    return TraceSet(
        request_id=np.array([str(i) for i in range(len(prompt))], dtype=np.str_),
        prompt_len=prompt,
        proposers={proposer: moved.generate(_SEED, output)},
        provenance=model.provenance,
    )


def _root(excess: Callable[[float], float]) -> float:
    """Where ``excess``, which rises, is zero; the bound that is nearest to it where that is out of reach."""
    if excess(MOST_SHIFT) <= 0.0:
        return MOST_SHIFT
    if excess(-MOST_SHIFT) >= 0.0:
        return -MOST_SHIFT
    return float(brentq(excess, -MOST_SHIFT, MOST_SHIFT, xtol=SHIFT_STEP))


def _with(setups: Bench, traces: Sequence[TraceSet]) -> Bench:
    """The same bench with each source's requests taken from ``traces``."""
    return tuple(
        replace(setup, source=replace(setup.source, workload=None, recorded=each))
        for setup, each in zip(setups, traces, strict=True)
    )
