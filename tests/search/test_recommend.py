"""The answer as a whole, where a part alone does not show the fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplan.config.scenario import make_scenario
from kplan.errors import InfeasibleError
from kplan.search.recommend import recommend


def test_an_slo_out_of_reach_is_told_of_a_log_with_sessions(tmp_path: Path) -> None:
    """Weights of 16 GB at 3.35 TB/s take 4.8 ms a step, of 8 tokens at most: no token takes 0.1 ms."""
    log = tmp_path / "log.csv"
    head = "t_s,input_tokens,output_tokens,session_id\n"
    log.write_text(head + "".join(f"{t},{100 + 40 * (t // 4)},30,{t % 4}\n" for t in range(40)))
    with pytest.raises(InfeasibleError, match="no number of replicas"):
        recommend(make_scenario({"replay": log, "slo_tpot_ms": 0.1, "replications": 1}))
