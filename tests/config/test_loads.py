"""Loads and servers in words."""

from __future__ import annotations

import pytest

from kplan.config.loads import load_words, ranks_words, requests_words
from tests.export.sample import question

ALONE = {"qps": None}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "64 QPS"),
        ({"burstiness": 0.5}, "64 QPS (burstiness 0.5)"),
        ({"arrivals": "constant"}, "64 QPS at even gaps"),
        ({"arrivals": "ramp", "ramp_to_qps": 80.0}, "64 to 80 QPS"),
        ({**ALONE, "concurrency": 32}, "concurrency 32"),
        ({**ALONE, "concurrency": 32, "think_s": 5.0}, "concurrency 32 with pauses of 5 s"),
        ({**ALONE, "replay": "day.csv"}, "the pace of day.csv"),
        ({"replay": "day.csv"}, "64 QPS in the pattern of day.csv"),
    ],
)
def test_a_load_reads_after_at(asked: dict[str, object], words: str) -> None:
    assert load_words(question(**asked)) == words


def test_a_server_names_its_ranks_where_it_has_some() -> None:
    assert ranks_words(question(tp=4)) == "TP 4"
    assert ranks_words(question(tp=4, dp=2)) == "TP 4 x DP 2"


def test_a_log_lends_its_lengths_and_a_workload_the_acceptance() -> None:
    assert requests_words(question()) == "sharegpt"
    assert requests_words(question(traces="mine.jsonl")) == "traces mine.jsonl"
    assert requests_words(question(traces="mine.jsonl", dataset="gsm8k")) == "traces mine.jsonl (gsm8k)"
    assert requests_words(question(replay="day.csv")) == "acceptance of sharegpt"
