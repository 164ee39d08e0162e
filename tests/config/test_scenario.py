"""Scenarios: what is refused, and how the one line names the fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplan.config.scenario import load_scenario, make_scenario
from kplan.errors import InputError


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"qps": -1.0}, ["--qps", "-1.0", "greater than"]),
        ({"qps": float("nan")}, ["--qps", "nan"]),
        ({"qps": float("inf")}, ["--qps", "inf"]),
        ({"qps": "fast"}, ["--qps", "fast", "number"]),
        ({"qps": 1e9}, ["--qps", "100000"]),
        ({"concurrency": 0}, ["--concurrency", "0"]),
        ({"qps": 1.0, "concurrency": 1}, ["exactly one"]),
        ({}, ["exactly one"]),
        ({"qps": 1e-300}, ["--qps", "1e-300", "0.000001"]),
        ({"qps": True}, ["qps", "True"]),
        ({"concurrency": 2, "replicas": 4}, ["2", "4", "replicas"]),
        ({"concurrency": 64, "requests": 10}, ["64", "10", "busy"]),
        ({"qps": 1.0, "modle": "x"}, ["modle", "known keys", "model"]),
        ({"qps": 1.0, "max_k": 300}, ["--max-k", "300", "254"]),
        ({"qps": 1.0, "slo_tpot_ms": 0}, ["--slo-tpot-ms", "0"]),
    ],
)
def test_a_fault_is_one_line_with_key_value_and_bound(values: dict[str, object], named: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        make_scenario(values)
    text = str(caught.value)
    assert "\n" not in text
    for part in named:
        assert part in text


def test_flags_win_over_the_file_and_switch_the_kind_of_load(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("qps: 10\nmax-k: 5\ntraces: data/t.jsonl\npolicy: off\n")
    scenario = load_scenario(file, {"concurrency": 4}, {"replications": 3, "max_k": 2})
    assert (scenario.qps, scenario.concurrency) == (None, 4)
    assert scenario.max_k == 5, "the file wins over the command's default"
    assert scenario.replications == 3
    assert scenario.traces == tmp_path / "data/t.jsonl", "paths are relative to the file"


@pytest.mark.parametrize("text", ["- 1\n", "qps: [", "qps: 1\nqps: {a: 1}\n", "\x00", ""])
def test_a_file_that_is_no_scenario_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        load_scenario(file, {}, {})
    assert "\n" not in str(caught.value)


def test_yaml_says_off_with_a_word_that_yaml_takes_for_false(tmp_path: Path) -> None:
    """`policy: off` is the boolean False to YAML 1.1; a user means the policy."""
    file = tmp_path / "s.yaml"
    file.write_text("qps: 1\npolicy: off\n")
    assert load_scenario(file, {}, {}).policy == "off"


def test_two_keys_are_true_or_false(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("concurrency: 4\nasync-scheduling: false\nenforce-eager: true\n")
    scenario = load_scenario(file, {}, {})
    assert (scenario.async_scheduling, scenario.enforce_eager) == (False, True)
    assert make_scenario({"qps": 1.0}).async_scheduling is None
    with pytest.raises(InputError, match="async"):
        make_scenario({"qps": 1.0, "async_scheduling": 3})
