"""Every number of every profile, and of every policy, at the edges of what a number can be.

The fields are read off the files that ship and checked against the schemas, the parameters are read off the
policies, so that a new one is tried without being named here. Each value is refused in one line that names
the field, or gives finite results. Warnings are errors: numpy's overflow would fail a test too.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import numpy as np
import pytest
from pydantic import BaseModel

from kplan.config.scenario import Scenario, make_scenario
from kplan.errors import InputError
from kplan.latency import LatencyModel, StepShape, engine_traits
from kplan.plainjson import HeldText
from kplan.plainyaml import load_yaml
from kplan.profiles import (
    convert,
    load,
    load_calibration,
    load_drafter,
    load_engine,
    load_hardware,
    load_model,
)
from kplan.registry import list_policies, parse_policy, policy_class
from kplan.testing.scene import drive, make_scene
from kplan.workload import profile

EDGES: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, 0, -0.0, -1, 1e-300, 1e300, 2**63, 10**30, True, "1e3", "\u0663", "", None,
)  # fmt: skip
NEVER = (math.nan, math.inf, -math.inf, -1, 1e300, 10**30, "")
"""Refused wherever a number is asked for, but of a correlation (-1) and in text fields."""


PROFILES = Path(str(files("kplan_profiles")))


@cache
def _default(name: str) -> Any:
    """What stands beside the profile that is tried."""
    return {
        "hardware": lambda: load_hardware("h100-sxm"),
        "models": lambda: load_model("llama-3.1-8b"),
        "drafters": lambda: load_drafter("eagle3", _default("models")),
        "calibrations": lambda: load_calibration("h100-sxm"),
        "engines": lambda: load_engine("vllm"),
    }[name]()


def _numbers(node: object, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the numbers of a document are; of a list of them, the first. YAML reads 85.0e9 as a text."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _numbers(value, (*at, key))
    elif isinstance(node, list):
        for i, value in enumerate(node[:1]):
            yield from _numbers(value, (*at, i))
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield at
    elif isinstance(node, str) and at[-1] not in ("name", "note", "version", "source"):
        try:
            float(node)
        except ValueError:
            return
        yield at


def _put(node: Any, at: tuple[Any, ...], value: object) -> Any:
    if not at:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[at[0]] = _put(copy[at[0]], at[1:], value)
    return copy


@dataclass(frozen=True)
class Case:
    """A profile that ships, and those of its numbers that no earlier one of its kind has."""

    kind: str
    document: Any
    places: tuple[tuple[Any, ...], ...]


def _cases(kind: str) -> list[Case]:
    seen: set[tuple[Any, ...]] = set()
    cases = []
    for file in sorted((PROFILES / kind).glob("*.yaml")):
        document = load_yaml(file.read_text(encoding="utf-8"))
        new = {_path(at): at for at in _numbers(document) if _path(at) not in seen}
        seen |= set(new)
        cases.append(Case(kind, document, tuple(new.values())))
    return cases


def _path(at: tuple[Any, ...]) -> tuple[Any, ...]:
    """The place in the schema: any entry of a mapping or a list stands for all of them."""
    return tuple("*" if key in _ANY or isinstance(key, int) else key for key in at)


_ANY = frozenset(("eagle", "eagle3", "mtp", "draft-model", "pard", "self-kv"))

KINDS = ("hardware", "models", "drafters", "calibrations", "engines", "workloads")


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_of_a_profile_is_refused_or_priced(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of the profiles that ship, in turn, becomes each of EDGES."""
    for beside in KINDS[:-1]:
        _default(beside)
    for case in _cases(kind):
        for at in case.places:
            for value in EDGES:
                document = _put(case.document, at, value)
                monkeypatch.setattr(load, "load_yaml", lambda _, document=document: document)
                monkeypatch.setattr(profile, "load_yaml", lambda _, document=document: document)
                try:
                    _finite_prices(kind)
                except InputError as refused:
                    said = str(refused)
                    assert "\n" not in said
                    assert any(str(key) in said for key in at), said
                else:
                    assert not _is_never(value) or at[-1] == "rank_correlation", f"{at} took {value!r}"


def test_no_number_of_a_schema_is_left_out() -> None:
    """Every numeric field of every schema stands in a profile that ships, of its kind or of another."""
    tried = {key for kind in KINDS for case in _cases(kind) for at in case.places for key in at}
    fields = set().union(*(_number_fields(schema) for schema in _SCHEMAS.values()))
    assert fields - tried == set()


def _is_never(value: object) -> bool:
    return value != value or any(type(value) is type(one) and value == one for one in NEVER)


def _number_fields(model: type[BaseModel]) -> set[str]:
    """Names of the numeric fields of a schema and of the records in it."""
    found = set()
    for name, field in model.model_fields.items():
        leaves = list(_leaves(field.annotation))
        if any(leaf in (int, float) for leaf in leaves):
            found.add(name)
        for leaf in leaves:
            if isinstance(leaf, type) and issubclass(leaf, BaseModel):
                found |= _number_fields(leaf)
    return found


def _leaves(annotation: Any) -> Iterator[Any]:
    parts = get_args(annotation)
    if get_origin(annotation) is Annotated:
        parts = parts[:1]
    if not parts:
        yield annotation
    for part in parts:
        yield from _leaves(part)


_SCHEMAS: dict[str, type[BaseModel]] = {**load._SCHEMAS, "workloads": profile._WorkloadFile}
_HELD: Any = HeldText("edge.yaml")


def _finite_prices(kind: str) -> None:
    """Read the document that stands in for a file and use what it holds: all comes out finite."""
    if kind == "workloads":
        prompt, output = profile._workload(profile._parse(_HELD), Path()).lengths.sample(0, 100)
        assert 1 <= min(prompt.min(), output.min()) <= max(prompt.max(), output.max()) <= 10_000_000
        return
    entry: Any = load.parse(kind, _HELD, load._SCHEMAS[kind])
    made = {name: _default(name) for name in ("hardware", "models", "calibrations", "engines", "drafters")}
    if kind == "models":
        made |= {"models": convert.model(entry), "drafters": None}
    elif kind == "drafters":
        drafter = convert.drafter(entry)
        if drafter.decoder is None:  # it takes its target's, or needs none
            return
        made["drafters"] = drafter
    else:
        made[kind] = getattr(convert, _CONVERTED[kind])(entry)
    hardware, drafter = made["hardware"], made["drafters"]
    if drafter and drafter.proposer not in made["calibrations"].host.pass_s:
        drafter = None
    tokens, seats = made["engines"].limits(hardware, drafting=True)
    assert min(tokens, seats) >= 1
    calibration = replace(made["calibrations"], hardware=hardware.name)
    latency = LatencyModel(
        hardware, made["models"], drafter, calibration, traits=engine_traits(made["engines"], drafter, 8, 3)
    )
    k = 3 if drafter else 0
    seconds = latency.step_seconds(StepShape.decode(np.array([1, 8, 64]), k, np.array([[1], [4096]]))).total_s
    assert np.isfinite(seconds).all()
    assert (seconds > 0).all()


_CONVERTED = {"hardware": "hardware", "calibrations": "calibration", "engines": "engine"}


TEXTS = ("nan", "inf", "-inf", "0", "-0.0", "-1", "1e-300", "1e300", str(2**63), str(10**30), "true", "1e3",
         "\u0663", "", "null")  # fmt: skip


def _parameters() -> list[Any]:
    return [
        pytest.param(name, parameter, id=f"{name}:{parameter}")
        for name, _ in list_policies()
        for parameter in inspect.signature(policy_class(name)[1]).parameters
    ]


@pytest.mark.parametrize(("name", "parameter"), _parameters())
def test_a_number_of_a_policy_is_refused_or_followed(name: str, parameter: str) -> None:
    for text in TEXTS:
        try:
            spec = parse_policy(f"{name}:{parameter}={text}")
        except InputError as refused:
            said = str(refused)
            assert "\n" not in said
            assert f"{name}:{parameter}={text}" in said
            continue
        assert text not in ("nan", "inf", "-inf", "1e300", str(10**30), ""), spec.text
        for ks in drive(spec.build(), make_scene(2, steps=20), spec.info):
            assert min(ks) >= 0


BESIDE: dict[str, dict[str, Any]] = {
    "concurrency": {},
    "think_s": {"concurrency": 2},
    "ramp_to_qps": {"qps": 4.0, "arrivals": "ramp"},
    "switch_us": {"qps": 4.0, "proposer": "ngram+eagle3"},
}
"""What a field of the scenario needs beside it; without an entry a rate."""


def _scenario_fields() -> list[str]:
    return [
        name
        for name, field in Scenario.model_fields.items()
        if any(leaf in (int, float) for leaf in _leaves(field.annotation))
    ]


@pytest.mark.parametrize("field", _scenario_fields())
def test_a_number_of_a_scenario_is_refused_or_bounded(field: str) -> None:
    """What is taken is finite and at most 1e300, which only an SLO and a seed come near."""
    for value in EDGES:
        try:
            made = make_scenario({**BESIDE.get(field, {"qps": 4.0}), field: value})
        except InputError as refused:
            said = str(refused)
            assert "\n" not in said
            assert field in said.replace("-", "_") or "exactly one of" in said
            continue
        taken = getattr(made, field)
        assert value is not True
        assert taken is None or math.isfinite(taken)
        assert taken is None or taken >= 0
        assert taken is None or taken < 2**24 or field in ("seed", "slo_tpot_ms", "slo_ttft_ms")
