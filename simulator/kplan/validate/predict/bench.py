"""What predictors share: a scenario under every source of GEMM times, and runs of it.

A figure is an array (S,) over the S sources, the calibration's own first, so that ratios and products of
figures keep to one source; :func:`prediction` makes the value and its band of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.config.scenario import make_scenario
from kplan.errors import InputError
from kplan.metrics import Measured
from kplan.profiles import Calibration, EngineProfile, load_calibration, load_engine
from kplan.registry import parse_policy
from kplan.simulate import Setup, default_requests, draw_requests, prepare, run_policy
from kplan.validate.table import Prediction, PublishedTable

Floats = NDArray[np.float64]
Bench = tuple[Setup, ...]
"""One scenario prepared under each source of GEMM times, the calibration's own first."""

ENGINE_TRAITS = "engine_traits"
"""Key in a table's settings: fields of the engine profile that the release measured had otherwise."""
FEWEST_REQUESTS = 400
"""Requests of a run at least: with fewer, what they happen to be moves a speedup by a percent and more."""


def sources(hardware: str) -> tuple[Calibration, ...]:
    """The calibration of a GPU, and the same with its second source of GEMM times where it has one."""
    own = load_calibration(hardware)
    return (own,) if own.gemm_alternate is None else (own, replace(own, gemm=own.gemm_alternate))


def engine_of(name: str, traits: Mapping[str, Any]) -> EngineProfile:
    """An engine's profile with ``traits`` changed to what another release had.

    Raises:
        InputError: an unknown engine, or a trait that no profile has.
    """
    known = {field.name for field in fields(EngineProfile)}
    for trait in traits:
        if trait not in known:
            raise InputError(ENGINE_TRAITS, trait, f"known: {', '.join(sorted(known))}")
    return replace(load_engine(name), **traits)


def bench(table: PublishedTable, **scenario: Any) -> Bench:
    """Prepare a scenario under every source of GEMM times.

    Args:
        scenario: fields of :class:`kplan.config.scenario.Scenario`; the table's settings of these names, and
            its engine traits, hold where they are not given.

    Raises:
        InputError: a setting that is no field of a scenario, or a name without a profile.
        InfeasibleError: the weights do not fit.
    """
    settings = {key: value for key, value in table.settings.items() if key != ENGINE_TRAITS}
    asked = make_scenario(settings | scenario, f"table {table.name}")
    engine = engine_of(asked.engine, table.settings.get(ENGINE_TRAITS, {}))
    return tuple(prepare(asked, calibration=each, engine=engine) for each in sources(asked.hardware))


def run(setups: Bench, policy: str, seed: int = 0) -> tuple[Measured, ...]:
    """Simulate ``policy``: the same requests for every policy and every source of GEMM times."""
    requests = max(default_requests(setups[0]), FEWEST_REQUESTS)
    drawn = draw_requests(setups[0], requests, seed)
    spec = parse_policy(policy)
    return tuple(run_policy(setup, spec, drawn) for setup in setups)


def tpot_ms(runs: Sequence[Measured]) -> Floats:
    """(S,) mean TPOT over requests, ms."""
    return np.array([each.mean_tpot_s * 1e3 for each in runs])


def tokens_per_s(runs: Sequence[Measured]) -> Floats:
    """(S,) output tokens per second."""
    return np.array([each.output_tok_s for each in runs])


def prediction(figure: Floats, *, used_in_fit: bool = False, note: str = "") -> Prediction:
    """The own source's figure with the band over all sources."""
    return Prediction(float(figure[0]), float(figure.min()), float(figure.max()), used_in_fit, note)
