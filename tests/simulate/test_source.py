"""What a server admits of a load; every row was worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kplan.config.scenario import make_scenario
from kplan.errors import InputError
from kplan.profiles import load_drafter, load_model
from kplan.simulate import at_rate, default_requests, draw_requests, prepare
from kplan.simulate.source import Source, admitted, mean_lengths, read_source, rows_of
from kplan.workload import Prefix

# 5 s, 5 requests; a session of A's turns 0, 1, 3 and one of B's turn 2; request 4 stands alone.
LOG = """t_s,input_tokens,output_tokens,session_id
0,40,20,A
1,90,20,A
2,10,30,B
3,95,50,A
5,120,10,
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(LOG)
    return path


def _source(log: Path, **changes: object) -> Source:
    model = load_model("llama-3.1-8b")
    return read_source(make_scenario({"replay": log, **changes}), model, load_drafter("eagle3", model))


def test_a_prompt_needs_room_for_one_token_and_an_output_ends_at_the_context() -> None:
    rows, output = admitted(np.array([50, 99, 100, 101, 90]), np.array([20, 20, 20, 20, 20]), 100)
    assert rows.tolist() == [0, 1, 4]
    assert output.tolist() == [20, 1, 10]


def test_without_a_bound_everything_is_admitted_as_it_is() -> None:
    rows, output = admitted(np.array([50, 10_000]), np.array([20, 7]), None)
    assert rows.tolist() == [0, 1]
    assert output.tolist() == [20, 7]


def test_shares_and_means_are_those_of_what_is_admitted(log: Path) -> None:
    """At 100 tokens: 120 is refused; 90 + 20 and 95 + 50 end at 100, after 10 and 5 tokens."""
    source = _source(log, max_model_len=100)
    assert source.refused == pytest.approx(1 / 5)
    assert source.cut == pytest.approx(2 / 5)
    assert source.log is not None
    assert source.log.prompt_len.tolist() == [40, 90, 10, 95]
    assert source.log.output_len.tolist() == [20, 10, 30, 5]
    lengths = source.lengths
    assert lengths.output == pytest.approx(65 / 4)
    # tokens x (prompt + half the output): 20 x 50 + 10 x 95 + 30 x 25 + 5 x 97.5 = 3187.5
    assert lengths.context == pytest.approx(3187.5 / 65)
    assert lengths.longest_request == 100
    # of 65 tokens 61.75 are wanted: 5 + 10 + 20 = 35, + 30 = 65
    assert lengths.longest_output == 30
    assert source.log.mean_qps == pytest.approx(3 / 3)


def test_a_turn_after_a_refused_one_waits_for_the_turn_before(log: Path) -> None:
    """At 92 tokens turn 3 of A and request 4 go, at 60 turn 1 of A too; at 96 turn 3 follows turn 1."""
    assert _source(log).log.follows.tolist() == [-1, 0, -1, 1, -1]
    assert _source(log, max_model_len=96).log.follows.tolist() == [-1, 0, -1, 1]
    assert _source(log, max_model_len=92).log.follows.tolist() == [-1, 0, -1]
    middle = log.with_name("middle.csv")
    middle.write_text(LOG.replace("3,95,50,A", "3,55,50,A"))
    kept = _source(middle, max_model_len=60).log  # rows 0, 2, 3
    assert kept.prompt_len.tolist() == [40, 10, 55]
    assert kept.follows.tolist() == [-1, -1, 0]
    assert kept.t_s.tolist() == [0, 2, 3]


def test_a_session_whose_first_turns_are_refused_starts_later(log: Path) -> None:
    path = log.with_name("first.csv")
    path.write_text(LOG.replace("0,40,20,A", "0,200,20,A").replace("1,90,20,A", "1,300,20,A"))
    kept = _source(path, max_model_len=100).log  # rows 2 and 3
    assert kept.prompt_len.tolist() == [10, 95]
    assert kept.follows.tolist() == [-1, -1]


def test_a_session_shares_its_history_unless_nothing_is_cached(log: Path) -> None:
    """Units of 16 tokens: request 0 has 60 // 16 = 3; 3 of request 1's lie within those 60 tokens."""
    prefix = _source(log).log.prefix
    first, second = (prefix.ids[prefix.offsets[i] : prefix.offsets[i + 1]] for i in (0, 1))
    assert (len(first), len(second)) == (3, 6)
    assert second[:3].tolist() == first.tolist()
    assert not set(second[3:].tolist()) & set(first.tolist())
    assert _source(log, prefix_caching=False).log.prefix is None


def test_rows_of_a_prefix_keep_their_units_in_the_order_asked() -> None:
    prefix = Prefix(16, np.array([0, 1, 0, 2, 3, 4], np.int32), np.array([0, 2, 2, 5, 6]))
    picked = rows_of(prefix, np.array([2, 0, 1, 2]))
    assert picked.offsets.tolist() == [0, 3, 5, 5, 8]
    assert picked.ids.tolist() == [0, 2, 3, 0, 1, 0, 2, 3]
    assert picked.unit_tokens == 16


def test_a_context_that_no_request_fits_or_the_model_lacks_is_told(log: Path) -> None:
    with pytest.raises(InputError, match=r"every prompt reaches the context of 10 tokens.*--max-model-len"):
        _source(log, max_model_len=10)
    with pytest.raises(InputError, match="has a context of 131072 tokens"):
        _source(log, max_model_len=131_073)


def test_lengths_of_one_request_that_carries_all_tokens() -> None:
    lengths = mean_lengths(np.array([10, 0]), np.array([1, 999]))
    assert (lengths.output, lengths.longest_output, lengths.longest_request) == (500, 999, 999)


def test_the_server_sees_the_rate_that_it_admits() -> None:
    """Refused requests take no time: what is left of 10 QPS is drawn, simulated and spoken of."""
    setup = prepare(make_scenario({"qps": 10.0, "max_model_len": 200}))
    assert 0.2 < setup.source.refused < 0.9
    assert setup.rate == pytest.approx(10 * (1 - setup.source.refused))
    assert at_rate(setup, 3.0).rate == pytest.approx(3.0)
    drawn = draw_requests(setup, default_requests(setup), 0)
    assert (drawn.prompt_len + drawn.output_len).max() == 200


def test_a_ramp_of_which_some_is_refused_keeps_its_mean() -> None:
    load = {"qps": 4.0, "arrivals": "ramp", "ramp_to_qps": 12.0, "max_model_len": 200}
    setup = prepare(make_scenario(load))
    assert setup.rate == pytest.approx(8 * (1 - setup.source.refused))
    assert at_rate(setup, 2 * setup.rate).rate == pytest.approx(2 * setup.rate)
    arrivals = draw_requests(setup, 20_000, 0).unit_arrival_s
    assert arrivals[-1] == pytest.approx(20_000, rel=0.02)


def test_the_requests_that_fit_must_last(tmp_path: Path) -> None:
    """Of three requests 1 s apart the context takes two: those of 1 s and 3 s are a log of 2 s, 0.5 QPS."""
    path = tmp_path / "log.csv"
    head = "t_s,input_tokens,output_tokens\n"
    path.write_text(f"{head}0,500,5\n1,50,5\n3,50,5\n")
    source = _source(path, max_model_len=100)
    assert source.log is not None
    assert source.log.t_s.tolist() == [0, 2]
    assert source.log.mean_qps == pytest.approx(0.5)
    path.write_text(f"{head}0,500,5\n1,50,5\n1,50,5\n")
    with pytest.raises(InputError, match="that fit the context all come at one moment, so there is no rate"):
        _source(path, max_model_len=100)
