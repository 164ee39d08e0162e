"""A question and its address: the same both ways, and nothing else gets in."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kplan.dashboard import catalog
from kplan.dashboard.state import CHOICES, KNOBS, LONGEST_QUERY, Files, State
from kplan.errors import InputError


def _within(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


STATES = st.builds(
    State,
    qps=_within(0.1, 1000),
    clients=st.none() | st.integers(1, 256),
    prompt=st.none() | st.integers(1, 100_000),
    output=st.none() | st.integers(2, 4096),
    acceptance=st.integers(-20, 20),
    slo_tpot=st.none() | _within(1, 500),
    slo_ttft=st.none() | _within(10, 60_000),
    tp=st.sampled_from(catalog.TP),
    **{name: st.sampled_from(catalog.names(name)) for name in CHOICES},
)


@given(STATES)
@example(State())
def test_an_address_brings_its_question_back(state: State) -> None:
    assert State.from_query("?" + state.query()) == state
    assert len(state.query()) < LONGEST_QUERY


def test_the_default_question_has_the_bare_address() -> None:
    assert State().query() == ""
    assert State.from_query("") == State()
    assert State(qps=12.0, slo_tpot=8.5).query() == "qps=12&slo_tpot=8.5"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("qps=0", "0.1"),
        ("qps=1001", "1000"),
        ("qps=nan", "finite"),
        ("qps=inf", "finite"),
        ("qps=-1e999", "finite"),
        ("qps=many", "number"),
        ("clients=0", "1"),
        ("clients=257", "256"),
        ("prompt=100001", "100000"),
        ("prompt=12.5", "integer"),
        ("output=1", "2"),
        ("output=4097", "4096"),
        ("acceptance=21", "20"),
        ("slo_tpot=0.5", "1"),
        ("slo_ttft=9", "10"),
        ("tp=3", "one of 1, 2, 4, 8"),
        ("tp=99999999999999999999", "one of 1, 2, 4, 8"),
        ("model=/etc/passwd", "known: deepseek"),
        ("model=..%2f..%2fetc%2fpasswd", "known: deepseek"),
        ("hardware=h100.yaml", "did you mean"),
        ("workload=%00", "known: gsm8k"),
        ("proposer=ngram%2Beagle3", "known: "),
        ("engine=vllm%0aevil", "known: sglang, vllm"),
        ("traces=/etc/passwd", "is not known"),
        ("seed=1", "is not known"),
        ("qps=1&qps=2", "gives a key twice"),
        ("qps", "is no query string"),
        ("q%ff=1", "is no query string"),
        ("qps=" + "1" * LONGEST_QUERY, f"{LONGEST_QUERY} are read"),
    ],
)
def test_a_hostile_address_is_refused_in_one_short_line(query: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        State.from_query(query)
    text = str(refused.value)
    assert says in text
    assert "\n" not in text
    assert len(text) < 400


@given(
    st.text(max_size=60), st.dictionaries(st.sampled_from(sorted(State.model_fields)), st.text(max_size=20))
)
def test_no_text_raises_anything_but_one_line(raw: str, values: dict[str, str]) -> None:
    for query in (raw, urlencode(values)):
        told = _told(query)
        assert isinstance(told, State) or "\n" not in told
        assert isinstance(told, str) or State.from_query(told.query()) == told


def _told(query: str) -> State | str:
    try:
        return State.from_query(query)
    except InputError as refused:
        return str(refused)


def test_a_scenario_asks_what_the_page_shows() -> None:
    state = State.from_query("qps=12&prompt=500&output=64&slo_tpot=8&slo_ttft=300&tp=2&engine=sglang")
    scenario = state.scenario(4)
    assert (scenario.qps, scenario.prompt_tokens, scenario.output_tokens) == (12.0, 500, 64)
    assert (scenario.slo_tpot_ms, scenario.slo_ttft_ms) == (8.0, 300.0)
    assert (scenario.tp, scenario.engine, scenario.replications) == (2, "sglang", 4)
    assert {knob.name for knob in KNOBS} < set(State.model_fields)


def test_clients_take_the_place_of_the_rate() -> None:
    closed = State(qps=12.0, clients=32)
    assert closed.load == "32 clients"
    assert State(qps=12.0).load == "12 requests/s"
    scenario = closed.scenario(2)
    assert (scenario.qps, scenario.concurrency, scenario.replications) == (None, 32, 2)


def test_files_stand_in_the_scenario_and_recorded_acceptance_is_not_moved(tmp_path: Path) -> None:
    files = Files(tmp_path / "mine.parquet", "org/head")
    scenario = State().scenario(1, files)
    assert (scenario.traces, scenario.drafter) == (tmp_path / "mine.parquet", "org/head")
    with pytest.raises(InputError, match="recorded traces is not moved"):
        State(acceptance=5).scenario(1, files)
