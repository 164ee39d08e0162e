"""The combined oracle at kplan's own step costs, on recorded traces, against a plain loop over steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kplan.acceptance import load_traces, save_traces
from kplan.acceptance.reference_parquet import load_reference
from kplan.config.scenario import make_scenario
from kplan.latency import StepShape
from kplan.registry import parse_policy
from kplan.simulate import Setup, draw_requests, prepare
from kplan.simulate.run import run_fleet

DATASET, MAX_K = "instructcoder", 7


def aligned(shared_dir: Path) -> pd.DataFrame:
    """The recorded requests whose two traces are of one generation, in the order of the file."""
    frame = pd.read_parquet(shared_dir / "data" / "acceptance_traces.parquet")
    return frame[(frame["dataset"] == DATASET) & frame["eagle_aligned"]]


def step_prices(setup: Setup, prompt: int, output: int) -> NDArray[np.float64]:
    """(output, MAX_K + 1, MAX_K + 1) seconds of a step of one request, by tokens emitted, drafts verified and
    depth of the model drafter (0: it drafts nothing); the lookup looks over the context in every step."""
    assert setup.mix is not None
    context, verified, depth = np.ogrid[prompt : prompt + output, : MAX_K + 1, : MAX_K + 1]
    tokens = verified + 1
    shape = StepShape(
        decode_requests=1,
        decode_tokens=tokens,
        decode_kv_tokens=context,
        decode_qk_tokens=tokens * context,
        sampled_rows=tokens,
        draft_requests=np.minimum(depth, 1),
        draft_k=depth,
    )
    cost = setup.mix.cost
    seconds: NDArray[np.float64] = setup.mix.latency.step_seconds(shape).total_s
    return seconds + cost.lookup_request_s + context * cost.lookup_token_s


def decode_s(setup: Setup, prompt: int, lookup: NDArray[np.int64], head: NDArray[np.int64]) -> float:
    """Seconds from the first token to the last of a request that is served alone.

    Each step verifies what was drafted for it and drafts for the next, whose drafts are those that will be
    accepted: all of the lookup's, or as many of the head's as give the most tokens per second.
    """
    output = len(lookup)
    price = step_prices(setup, prompt, output)

    def chosen(at: int) -> tuple[int, int]:
        """(drafts, depth) for the step at ``at``; the head drafts where it gives more than was looked up."""
        looked, useful = (min(int(acc[at]), output - at, MAX_K + 1) - 1 for acc in (lookup, head))
        choices = [(looked, 0), *((depth, depth) for depth in range(looked + 1, useful + 1))]
        return max(choices, key=lambda one: (1 + one[0]) / price[at, one[0], one[1]])

    at, spent_s = 1, 0.0
    drafts, _ = chosen(1)  # drafted in the prefill step
    while at < output:
        after = at + 1 + drafts
        next_drafts, depth = chosen(after) if after < output else (0, 0)
        spent_s += price[at, drafts, depth]
        at, drafts = after, next_drafts
    return spent_s


def test_the_combined_oracle_alone_takes_the_seconds_of_a_plain_loop(
    shared_dir: Path, tmp_path: Path
) -> None:
    """Request by request; in its last step a request drafts nothing, for there is no next."""
    file = tmp_path / "recorded.parquet"
    save_traces(load_reference(shared_dir / "data" / "acceptance_traces.parquet", DATASET), file)
    assert {"ngram", "eagle3"} <= set(load_traces(file).proposers)
    frame = aligned(shared_dir)
    asked = {"concurrency": 1, "proposer": "ngram+eagle3", "traces": file, "max_k": MAX_K}
    setup = prepare(make_scenario(asked))
    drawn = draw_requests(setup, len(frame), 0)
    fleet, _ = run_fleet(setup, parse_policy("combined-oracle"), drawn)
    row = np.argsort(np.argsort(drawn.trace_at))  # each recorded request once, shuffled
    ended = fleet.requests
    engine_s = (ended["finish_s"] - ended["first_token_s"])[1:]  # the first one's client is met midway
    loop_s = np.array(
        [
            decode_s(
                setup,
                int(frame["prompt_len"].iloc[at]),
                frame["acc_ngram"].iloc[at].astype(np.int64),
                frame["acc_eagle"].iloc[at].astype(np.int64),
            )
            for at in row[1:]
        ]
    )
    assert len(loop_s) > 250
    np.testing.assert_array_equal(ended["output_len"][1:], frame["output_len"].to_numpy()[row[1:]])
    np.testing.assert_allclose(engine_s, loop_s, rtol=1e-9)
