"""What predictors share: a scenario under every source of GEMM times, and runs of it.

A figure is an array (S,) over the S sources, the calibration's own first, so that ratios and products of
figures keep to one source; :func:`prediction` makes the value and its band of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from kplan.config.scenario import make_scenario
from kplan.errors import InputError
from kplan.metrics import Measured
from kplan.profiles import Calibration, EngineProfile, load_calibration, load_engine, load_hardware
from kplan.profiles.schema import Entry
from kplan.provenance import Figure, Kind, Provenance
from kplan.registry import parse_policy
from kplan.simulate import Setup, default_requests, draw_requests, prepare, run_policy
from kplan.validate.table import Prediction, PublishedTable

Floats = NDArray[np.float64]
Bench = tuple[Setup, ...]
"""One scenario prepared under each source of GEMM times, the calibration's own first."""

FEWEST_REQUESTS = 400
"""Requests of a run at least: with fewer, what they happen to be moves a speedup by a percent and more."""


class Settings(Entry):
    """A table's settings; predictors that want more of them derive their own.

    Attributes:
        scenario: fields of :class:`kplan.config.scenario.Scenario` that all rows share.
        engine_traits: fields of the engine profile that the release measured had otherwise.
        calibration: of the server measured, where its host is not the one that the GPU's own was fitted on.
        host_request_s: host time per request and step in place of the calibration's, where only this is known
            to be another's.
    """

    scenario: dict[str, Any] = Field(default_factory=dict)
    engine_traits: dict[str, Any] = Field(default_factory=dict)
    calibration: str | None = None
    host_request_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


Own = TypeVar("Own", bound=Settings)


def settings_of(table: PublishedTable, kind: type[Own]) -> Own:
    """The table's settings as ``kind``. Raises InputError naming the first key that does not fit."""
    try:
        return kind.model_validate(table.settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(("settings", *map(str, first["loc"])))
        raise InputError(f"table {table.name}", where, first["msg"], "mend that key") from error


def sources(hardware: str, settings: Settings) -> tuple[Calibration, ...]:
    """The calibration (a GPU's own where the settings name none), and the same on its second source of GEMM
    times where it has one."""
    own = load_calibration(settings.calibration or load_hardware(hardware))
    other = own.alternate()
    found = (own,) if other is None else (own, other)
    if settings.host_request_s is None:
        return found
    request_s = Figure(settings.host_request_s, Provenance(Kind.ASSUMED, "settings of the table"))
    return tuple(replace(each, host=replace(each.host, request_s=request_s)) for each in found)


def engine_of(name: str, traits: Mapping[str, Any]) -> EngineProfile:
    """An engine's profile with ``traits`` changed to what another release had.

    Raises:
        InputError: an unknown engine, or a trait that no profile has.
    """
    known = {field.name for field in fields(EngineProfile)}
    for trait in traits:
        if trait not in known:
            raise InputError("engine trait", trait, f"known: {', '.join(sorted(known))}")
    return replace(load_engine(name), **traits)


def bench(settings: Settings, **scenario: Any) -> Bench:
    """Prepare a scenario under every source of GEMM times.

    Args:
        scenario: fields that win over those of the settings.

    Raises:
        InputError: a field that no scenario has, or a name without a profile.
        InfeasibleError: the weights do not fit.
    """
    asked = make_scenario(settings.scenario | scenario, "settings.scenario")
    engine = engine_of(asked.engine, settings.engine_traits)
    priced = sources(asked.hardware, settings)
    return tuple(prepare(asked, calibration=each, engine=engine) for each in priced)


def run(setups: Bench, policy: str, seed: int = 0) -> tuple[Measured, ...]:
    """Simulate ``policy`` on the same requests as every other, and every source that has the same traces."""
    requests = max(default_requests(setups[0]), FEWEST_REQUESTS)
    spec = parse_policy(policy)
    shared = draw_requests(setups[0], requests, seed)
    return tuple(
        run_policy(
            setup,
            spec,
            shared if setup.recorded is setups[0].recorded else draw_requests(setup, requests, seed),
        )
        for setup in setups
    )


def tpot_ms(runs: Sequence[Measured]) -> Floats:
    """(S,) mean TPOT over requests, ms."""
    return np.array([each.mean_tpot_s * 1e3 for each in runs])


def tokens_per_s(runs: Sequence[Measured]) -> Floats:
    """(S,) output tokens per second."""
    return np.array([each.output_tok_s for each in runs])


def prediction(figure: Floats, *, used_in_fit: bool = False, note: str = "") -> Prediction:
    """The own source's figure with the band over all sources."""
    return Prediction(float(figure[0]), float(figure.min()), float(figure.max()), used_in_fit, note)
