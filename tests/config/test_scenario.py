"""Scenarios: what is refused, and how the one line names the fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplan.config.scenario import load_scenario, make_scenario
from kplan.config.shipped import shipped_traces, trace_path
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
        ({"replay": "a.csv", "concurrency": 4}, ["exactly one", "--replay"]),
        ({"replay": "a.csv", "traces": "t.jsonl"}, ["--traces", "--replay", "leave it out"]),
        ({"replay": "a.csv", "prompt_tokens": 9}, ["--prompt-tokens", "--replay"]),
        ({"replay": "a.csv", "output_tokens": 9}, ["--output-tokens", "--replay"]),
        ({"replay": "a.csv", "arrivals": "poisson"}, ["--arrivals", "--replay"]),
        ({"replay": "a.csv", "qps": 3.0, "burstiness": 1.0}, ["--burstiness", "--replay"]),
        ({"replay": "a.csv", "think_s": 1.0}, ["--think-s", "--concurrency"]),
        ({"qps": 1.0, "columns": {"t_s": "when"}}, ["--columns", "--replay"]),
        ({"replay": "a.csv", "columns": {"t_s": 3}}, ["--columns t_s", "3", "string"]),
        ({"qps": 1.0, "arrivals": "ramp"}, ["--arrivals ramp", "--ramp-to-qps"]),
        ({"qps": 1.0, "ramp_to_qps": 4.0}, ["--arrivals ramp", "--ramp-to-qps"]),
        ({"qps": 1.0, "arrivals": "ramp", "ramp_to_qps": 0.0}, ["--ramp-to-qps", "0.0"]),
        ({"qps": 1.0, "arrivals": "uniform"}, ["--arrivals", "uniform", "constant"]),
        ({"qps": 1.0, "arrivals": "constant", "burstiness": 2.0}, ["--burstiness", "constant"]),
        ({"qps": 1.0, "burstiness": 0.0}, ["--burstiness", "0.0", "0.001"]),
        ({"qps": 1.0, "think_s": 2.0}, ["--think-s", "--concurrency"]),
        ({"concurrency": 4, "think_s": -1.0}, ["--think-s", "-1.0"]),
        ({"concurrency": 4, "arrivals": "constant"}, ["--arrivals", "open loop"]),
        ({"concurrency": 4, "ramp_to_qps": 9.0}, ["--ramp-to-qps", "open loop"]),
        ({"qps": 1.0, "router": "random"}, ["--router", "random", "least-outstanding"]),
        ({"qps": 1.0, "dp": 65}, ["--dp", "65", "64"]),
        ({"qps": 1.0, "dp": True}, ["dp", "True"]),
        ({"qps": 1.0, "max_model_len": 0}, ["--max-model-len", "0"]),
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


REPLAY = "replay: logs/a.csv\ncolumns: {t_s: when}\n"
RAMP = "qps: 2\narrivals: ramp\nramp-to-qps: 8\n"


@pytest.mark.parametrize(
    ("text", "flags", "left"),
    [
        (REPLAY, {"qps": 5.0}, {"replay", "columns", "qps"}),
        (REPLAY, {"concurrency": 5}, {"concurrency"}),
        (RAMP, {"concurrency": 5}, {"concurrency"}),
        (RAMP, {"replay": Path("b.csv")}, {"qps", "replay"}),
        ("concurrency: 9\nthink-s: 1\n", {"qps": 5.0}, {"qps"}),
        ("concurrency: 9\nthink-s: 1\n", {"replay": Path("b.csv")}, {"replay"}),
    ],
)
def test_a_flag_for_another_kind_of_load_drops_what_the_file_says_of_its_own(
    tmp_path: Path, text: str, flags: dict[str, object], left: set[str]
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    scenario = load_scenario(file, flags, {})
    assert scenario.model_fields_set == left
    if "columns" in left:
        assert scenario.replay == tmp_path / "logs/a.csv", "paths are relative to the file"


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


def test_three_keys_are_true_or_false(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("concurrency: 4\nasync-scheduling: false\nenforce-eager: true\nprefix-caching: false\n")
    scenario = load_scenario(file, {}, {})
    switches = (scenario.async_scheduling, scenario.enforce_eager, scenario.prefix_caching)
    assert switches == (False, True, False)
    assert make_scenario({"qps": 1.0}).async_scheduling is None
    with pytest.raises(InputError, match="async"):
        make_scenario({"qps": 1.0, "async_scheduling": 3})


def test_a_trace_that_ships_is_known_by_name_and_a_file_of_that_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = shipped_traces()["example"]
    assert make_scenario({"qps": 1, "traces": "example"}, "kplan").traces == shipped
    file = tmp_path / "scenario.yaml"
    file.write_text("qps: 1\ntraces: example\n")
    assert load_scenario(file, {}, {}).traces == shipped
    (tmp_path / "example").write_text("mine")
    assert make_scenario({"qps": 1, "traces": "example"}, "kplan").traces == Path("example")
    assert load_scenario(file, {}, {}).traces == tmp_path / "example"


def test_a_name_that_does_not_ship_and_a_path_are_left_for_the_reader_to_refuse(tmp_path: Path) -> None:
    assert trace_path(Path("exmple")) == Path("exmple")
    assert trace_path(tmp_path / "example") == tmp_path / "example"
