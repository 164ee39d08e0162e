"""The compiled step on made prices: every count has a price of its own, so that a sum tells its parts."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.latency import StepCost, StepShape, grid
from kplan.latency.attention import UNBOUNDED, AttentionCost, decode_attention, pass_s, prompt_counts
from kplan.latency.compiled import (
    DRAFT_FIRST,
    DRAFT_HEAD,
    DRAFT_NEXT,
    HEAD,
    LOOKUP_DRAFTER,
    MODEL_DRAFTER,
    NO_DRAFTER,
    TARGET,
    first_pass_s,
    first_rest_s,
    later_pass_s,
    later_passes,
    mixed_parts,
    step_parts,
    target_rest_s,
    verify_s,
)

PLAIN = AttentionCost(
    launch_s=7.0,
    request_s=2.0,
    kv_token_s=0.01,
    query_s=0.5,
    pair_s=1e-4,
    p=2.0,
    prefill_query_s=0.25,
    prefill_kv_token_s=0.02,
    prefill_pair_s=3e-4,
)
WINDOWED = PLAIN._replace(local=0.25, window=10.0)
DRAFT = PLAIN._replace(launch_s=3.0, request_s=1.0)


def tables() -> np.ndarray:
    """Seconds per count of each row, bent at the end: the last slope is twice as steep."""
    made = np.zeros((5, 41))
    for row, second in (
        (TARGET, 1.0),
        (HEAD, 0.1),
        (DRAFT_FIRST, 0.3),
        (DRAFT_NEXT, 0.2),
        (DRAFT_HEAD, 0.05),
    ):
        made[row] = second * np.arange(41)
        made[row, 40] += second
    return made


COST = StepCost(
    tables=tables(),
    attention=PLAIN,
    graph_tokens=16,
    graph_floor_s=1.0,
    eager_floor_s=2.0,
    sample_step_s=0.4,
    sample_row_s=0.03,
    verify_sample_step_s=0.6,
    verify_sample_row_s=0.07,
    drafter=MODEL_DRAFTER,
    draft_attention=DRAFT,
    draft_pass_s=0.0,
    draft_eager_pass_s=0.0,
    draft_catches_up=True,
    draft_passes=0,
    draft_width=1,
    draft_masks=0,
    draft_reach=UNBOUNDED,
    lookup_request_s=0.11,
    lookup_token_s=0.013,
    host_step_s=5.0,
    host_request_s=0.9,
    overlap=0.0,
    exposed_s=0.2,
    verify_request_s=0.35,
)

# --- attention


def test_work_per_request_and_traffic_are_joined_smoothly_and_pairs_are_a_bound() -> None:
    """3 requests are 6 s of work; 700 tokens of cache and 2 queries move in 8 s: together 10 s with p = 2."""
    assert decode_attention(PLAIN, 3, 2, 700, 0) == pytest.approx(10.0)
    assert decode_attention(PLAIN, 3, 2, 700, 99_999) == pytest.approx(10.0)
    assert decode_attention(PLAIN, 3, 2, 700, 200_000) == pytest.approx(20.0)
    assert decode_attention(PLAIN, 4, 4, 400, 0) == pytest.approx(10.0)  # 8 s of work, 6 of traffic
    assert decode_attention(PLAIN, 0, 2, 700, 0) == pytest.approx(8.0)
    assert decode_attention(PLAIN, 0, 2, 700, 90_000) == pytest.approx(9.0)
    assert decode_attention(PLAIN, 0, 0, 0, 0) == 0.0
    cubic = PLAIN._replace(p=3.0)
    assert decode_attention(cubic, 3, 2, 700, 0) == pytest.approx((6**3 + 8**3) ** (1 / 3))


def test_a_quarter_of_the_layers_look_back_ten_tokens() -> None:
    """Of 5,000 tokens, 2 requests with 4 queries see 2 x 9 + 4 = 22 there, and 4 x 10 of the pairs."""
    full = max(float(np.hypot(4, 52)), 2e6 * 1e-4)
    near = float(np.hypot(4, 0.22 + 2))
    assert decode_attention(WINDOWED, 2, 4, 5000, 2_000_000) == pytest.approx(0.75 * full + 0.25 * near)
    dear = WINDOWED._replace(pair_s=1.0)
    assert decode_attention(dear, 2, 4, 5000, 2_000_000) == pytest.approx(0.75 * 2e6 + 0.25 * 40)
    # what is nearer than the window is all seen
    assert decode_attention(WINDOWED, 2, 4, 21, 39) == pytest.approx(np.hypot(4, 0.21 + 2))
    assert decode_attention(dear, 2, 4, 21, 39) == pytest.approx(39)


def test_prompts_are_averaged_over_the_layers() -> None:
    assert prompt_counts(PLAIN, 2, 30, 100, 900.0) == (100, 900.0)
    kv, pairs = prompt_counts(WINDOWED, 2, 30, 100, 900.0)  # near: 2 x 9 + 30, and 300
    assert (kv, pairs) == (pytest.approx(0.75 * 100 + 0.25 * 48), pytest.approx(0.75 * 900 + 0.25 * 300))


@pytest.mark.parametrize(
    ("host_s", "expected_s"), [(5.0, 11.0), (10.9, 11.0), (11.1, 11.1), (14.9, 14.9), (30.0, 30.0)]
)
def test_a_pass_is_the_longer_of_host_and_gpu(host_s: float, expected_s: float) -> None:
    """1 s beside attention and 10 s of it, of which the parts add up to 14 s."""
    assert pass_s(host_s, 1.0, PLAIN, 3, 2, 700, 0) == pytest.approx(expected_s)


def test_the_parts_that_spare_the_powers_are_all_there() -> None:
    """Host times just below the sum of one part and the rest: attention is the longer."""
    for counts, gpu_s in (
        ((9, 0, 0, 0), 18.0),
        ((0, 9, 0, 0), 4.5),
        ((0, 0, 900, 0), 9.0),
        ((0, 0, 0, 90_000), 9.0),
    ):
        assert pass_s(gpu_s + 0.9, 1.0, PLAIN, *counts) == pytest.approx(gpu_s + 1.0)
        assert pass_s(gpu_s + 1.1, 1.0, PLAIN, *counts) == pytest.approx(gpu_s + 1.1)


# --- the target's pass


@pytest.mark.parametrize(
    ("tokens", "rows", "expected_s"),
    [
        (0, 0, 7.0),
        (5, 3, 12.3),
        (39, 40, 39 + 4.1 + 7),
        (40, 40, 41 + 4.1 + 7),
        (43, 42, 41 + 6 + 4.1 + 0.4 + 7),
    ],
)
def test_tables_go_on_along_their_last_slope(tokens: int, rows: int, expected_s: float) -> None:
    assert target_rest_s(COST, tokens, rows) == pytest.approx(expected_s)


def test_the_target_s_pass_adds_decodes_and_prompts() -> None:
    """Decodes of 10 s as above; a prompt of 8 tokens over 20 of cache, 100 pairs."""
    prompt_s = 8 * 0.25 + 20 * 0.02 + 100 * 3e-4
    assert verify_s(COST, 1.5, 3, 2, 700, 0, 1, 8, 20, 100.0) == pytest.approx(11.5 + prompt_s)
    windowed = COST._replace(attention=WINDOWED)
    near = 8 * 0.25 + (0.75 * 20 + 0.25 * 17) * 0.02 + (0.75 * 100 + 0.25 * 80) * 3e-4
    assert verify_s(windowed, 1.5, 0, 0, 0, 0, 1, 8, 20, 100.0) == pytest.approx(1.5 + near)


@pytest.mark.parametrize(
    ("decodes", "prompt", "floor_s"), [(8, 8, 300.0), (9, 8, 400.0), (8, 9, 400.0), (17, 0, 400.0)]
)
def test_a_pass_above_the_graphs_waits_for_its_launches(decodes: int, prompt: int, floor_s: float) -> None:
    slow = COST._replace(graph_floor_s=300.0, eager_floor_s=400.0)
    assert verify_s(slow, 1.5, 0, decodes, 0, 0, 1, prompt, 0, 0.0) == floor_s


# --- passes of a drafter


def test_a_first_pass_runs_over_the_step_and_its_masks() -> None:
    """11 tokens: 3 of decodes, 8 of a prompt; 4 requests draft, 2 deep."""
    prompt_s = 8 * 0.25 + 20 * 0.02 + 100 * 3e-4
    assert first_rest_s(COST, 3, 1, 8, 20, 100.0, 4, 2) == pytest.approx(11 * 0.3 + 4 * 0.05 + 3 + prompt_s)
    for requests, k in ((0, 2), (4, 0)):  # nothing is drafted
        assert first_rest_s(COST, 3, 1, 8, 20, 100.0, requests, k) == pytest.approx(11 * 0.3 + 3 + prompt_s)
    masks = COST._replace(draft_masks=1)
    expected = (11 + 8) * 0.3 + 8 * 0.05 + 3 + prompt_s
    assert first_rest_s(masks, 3, 1, 8, 20, 100.0, 4, 2) == pytest.approx(expected)
    one = (11 + 4) * 0.3 + 4 * 0.05 + 3 + prompt_s
    assert first_rest_s(masks, 3, 1, 8, 20, 100.0, 4, 1) == pytest.approx(one)


def test_masks_attend_to_the_whole_context() -> None:
    """3 requests work 3 s of the drafter; 2 queries and 6 masks over 700 tokens: 11 s."""
    assert first_pass_s(COST, 1.0, 3, 2, 700, 0, 20, 3, 2) == pytest.approx(1 + np.hypot(3, 8))
    masks = COST._replace(draft_masks=1)
    assert first_pass_s(masks, 1.0, 3, 2, 700, 0, 20, 3, 2) == pytest.approx(1 + np.hypot(3, 11))
    dear = masks._replace(draft_attention=DRAFT._replace(pair_s=1.0))
    assert first_pass_s(dear, 1.0, 3, 2, 700, 50, 20, 3, 2) == pytest.approx(1 + 50 + 2 * 720)
    none = dear._replace(draft_masks=0)
    assert first_pass_s(none, 1.0, 3, 2, 700, 50, 20, 3, 2) == pytest.approx(1 + 50)
    host = COST._replace(draft_pass_s=77.0)
    assert first_pass_s(host, 1.0, 3, 2, 700, 0, 20, 3, 2) == 77.0


def test_a_later_pass_is_over_the_branches_of_its_requests() -> None:
    """Rest: 0.25 s a row and the launch. Attention: 1 s a request, 0.5 a query, 0.01 a token of cache."""
    assert later_pass_s(COST, 4, 700) == pytest.approx(4 * 0.25 + 3 + np.hypot(4, 9))
    wide = COST._replace(draft_width=3)
    assert later_pass_s(wide, 4, 700) == pytest.approx(12 * 0.25 + 3 + np.hypot(4, 13))
    near = wide._replace(draft_reach=50)
    assert later_pass_s(near, 4, 700) == pytest.approx(12 * 0.25 + 3 + np.hypot(4, 8))
    assert later_pass_s(near, 4, 150) == pytest.approx(12 * 0.25 + 3 + np.hypot(4, 7.5))
    dear = near._replace(draft_attention=DRAFT._replace(pair_s=1.0))
    assert later_pass_s(dear, 4, 700) == pytest.approx(12 * 0.25 + 3 + 3 * 200)


@pytest.mark.parametrize(
    ("width", "requests", "expected_s"), [(1, 16, 50.0), (1, 17, 60.0), (2, 8, 50.0), (2, 9, 60.0)]
)
def test_a_later_pass_above_the_graphs_is_launched(width: int, requests: int, expected_s: float) -> None:
    slow = COST._replace(draft_pass_s=50.0, draft_eager_pass_s=60.0, draft_width=width)
    assert later_pass_s(slow, requests, 0) == expected_s


def test_a_step_makes_k_passes_or_as_many_as_its_drafter() -> None:
    assert [later_passes(COST, 2, k) for k in (0, 1, 2, 5)] == [0, 0, 1, 4]
    assert later_passes(COST, 0, 5) == 0
    assert later_passes(COST, 1, 5) == 4
    assert later_passes(COST._replace(draft_passes=1), 2, 5) == 0
    assert later_passes(COST._replace(draft_passes=3), 2, 5) == 2
    assert later_passes(COST._replace(draft_catches_up=False), 2, 5) == 5
    assert later_passes(COST._replace(drafter=LOOKUP_DRAFTER), 2, 5) == 0
    assert later_passes(COST._replace(drafter=NO_DRAFTER), 2, 5) == 0


# --- whole steps

STEP = (3, 6, 700, 1400, 1, 8, 20, 100.0, 7, 4, 2)
"""3 requests verify a draft each beside a prompt of 8; 7 rows are sampled; 4 requests draft 2."""
VERIFY_S = 14 + 0.7 + 7 + float(np.hypot(6, 10)) + 8 * 0.25 + 20 * 0.02 + 100 * 3e-4
FIRST_S = 14 * 0.3 + 4 * 0.05 + 3 + float(np.hypot(3, 10)) + 8 * 0.25 + 20 * 0.02 + 100 * 3e-4
LATER_S = 4 * 0.25 + 3 + float(np.hypot(4, 7.2 + 2))
SAMPLING_S, HOST_S = 0.6 + 7 * 0.07, 5 + 4 * 0.9


def test_a_step_is_its_pass_its_drafting_its_sampling_and_the_host() -> None:
    found = step_parts(COST, *STEP)
    assert found == pytest.approx((VERIFY_S, FIRST_S + LATER_S, SAMPLING_S, HOST_S + 3 * 0.35))
    deep = step_parts(COST, *STEP[:-1], 5)
    assert deep[1] == pytest.approx(FIRST_S + 4 * LATER_S)
    own = step_parts(COST._replace(draft_catches_up=False), *STEP)
    assert own[1] == pytest.approx(2 * LATER_S)
    assert step_parts(COST._replace(drafter=NO_DRAFTER, draft_catches_up=False), *STEP)[1] == 0.0


def test_a_step_without_drafts_samples_plainly() -> None:
    found = step_parts(COST, 3, 3, 700, 700, 1, 8, 20, 100.0, 4, 4, 2)
    assert found[2:] == pytest.approx((0.4 + 4 * 0.03, HOST_S))


def test_a_lookup_takes_its_requests_and_all_context() -> None:
    lookup = COST._replace(drafter=LOOKUP_DRAFTER, draft_catches_up=False)
    assert step_parts(lookup, *STEP)[1] == pytest.approx(4 * 0.11 + 720 * 0.013)
    assert step_parts(lookup, *STEP[:-1], 1)[1] == pytest.approx(4 * 0.11 + 720 * 0.013)
    assert step_parts(lookup, *STEP[:-1], 0)[1] == 0.0


def test_the_host_hides_behind_all_of_the_gpu_s_work() -> None:
    """The host's step is so long that 0.7 s of it outlast the step."""
    gpu_s = VERIFY_S + FIRST_S + LATER_S + SAMPLING_S
    long = COST._replace(overlap=1.0, host_step_s=gpu_s + 0.7 - 4 * 0.9)
    assert step_parts(long, *STEP)[3] == pytest.approx(0.7 + 3 * 0.35)
    assert step_parts(long._replace(host_step_s=1.0), *STEP)[3] == pytest.approx(0.2 + 3 * 0.35)


def test_lookups_beside_a_drafter_look_over_the_whole_context() -> None:
    counts = (*STEP[:9], 2, 4, 720, 2)
    beside = mixed_parts(COST._replace(lookups=3), *counts)
    assert beside[1] == pytest.approx(FIRST_S + LATER_S + 3 * (2 * 0.11 + 720 * 0.013))
    assert mixed_parts(COST, *counts)[1] == pytest.approx(FIRST_S + LATER_S)
    nobody = (*STEP[:9], 0, 4, 720, 2)
    assert mixed_parts(COST._replace(lookups=3), *nobody)[1] == pytest.approx(FIRST_S + LATER_S)
    one = mixed_parts(COST._replace(lookups=1), *STEP[:9], 1, 4, 720, 2)
    assert one[1] == pytest.approx(FIRST_S + LATER_S + 0.11 + 720 * 0.013)


def test_a_step_without_tokens_costs_nothing_and_one_token_something() -> None:
    assert step_parts(COST, 0, 0, 0, 0, 0, 0, 0, 0.0, 0, 4, 2) == (0.0, 0.0, 0.0, 0.0)
    assert step_parts(COST, 1, 1, 0, 0, 0, 0, 0, 0.0, 1, 0, 0)[0] == pytest.approx(
        1 + 0.1 + 7 + np.hypot(2, 0.5)
    )
    assert step_parts(COST, 0, 0, 0, 0, 1, 1, 0, 0.0, 1, 0, 0)[0] == pytest.approx(1 + 0.1 + 7 + 0.25)


# --- grids


def cells(*, threads: bool, monkeypatch: pytest.MonkeyPatch, cost: StepCost = COST) -> None:
    """A grid of mixed steps, some without tokens, against its cells."""
    if threads:
        monkeypatch.setattr(grid, "LARGE", 1)
        monkeypatch.setattr("os.cpu_count", lambda: 2)
    requests = np.arange(3)[:, None, None]
    k = np.arange(3)[None, :, None]
    prompts = np.arange(2)[None, None, :]
    shape = StepShape(
        requests, requests * (k + 1), requests * 50, requests * (k + 1) * 50, prompts, prompts * 9,
        prompts * 20, prompts * 40.5, requests * (k + 1) + prompts, requests + prompts, k,
    )  # fmt: skip
    whole, pairs = grid.columns(shape)
    found = grid.price_grid(cost, whole, pairs)
    assert found.shape == (4, 3, 3, 2)
    for at in np.ndindex(3, 3, 2):
        n, depth, p = (int(axis) for axis in at)
        queries = n * (depth + 1)
        counts = (n, queries, n * 50, queries * 50, p, p * 9, p * 20, p * 40.5, queries + p, n + p, depth)
        assert found[(slice(None), *at)] == pytest.approx(step_parts(cost, *counts), rel=1e-12)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(
    "cost",
    [
        COST,
        COST._replace(draft_masks=1, draft_passes=1),
        COST._replace(draft_catches_up=False, draft_reach=30),
    ],
)
def test_a_grid_is_its_cells_on_one_core_and_on_several(
    threads: bool, cost: StepCost, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells(threads=threads, monkeypatch=monkeypatch, cost=cost)


def test_a_single_step_and_a_row_of_them_are_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, pairs = grid.columns(StepShape(*STEP))
    assert grid.price_grid(COST, whole, pairs) == pytest.approx(step_parts(COST, *STEP))
    row = StepShape(*STEP[:-1], np.array([2, 5]))
    found = grid.price_grid(COST, *grid.columns(row))
    assert found.shape == (4, 2)
    assert found[:, 1] == pytest.approx(step_parts(COST, *STEP[:-1], 5))


def test_counts_are_whole_and_pairs_need_not_be() -> None:
    whole, pairs = grid.columns(StepShape(2.9, 3, 4, 5, 6, 7, 8, 9.5, 10, 11, 12))
    assert [int(column) for column in whole] == [2, 3, 4, 5, 6, 7, 8, 10, 11, 12]
    assert all(column.dtype == np.int64 for column in whole)
    assert float(pairs) == 9.5


@pytest.mark.parametrize(
    ("rows", "size", "cores", "bounds"),
    [
        (10, 400_000, 4, [(0, 2), (2, 5), (5, 7), (7, 10)]),
        (10, 399_999, 4, [(0, 10)]),
        (3, 500_000, 4, [(0, 1), (1, 2), (2, 3)]),
        (10, 500_000, None, [(0, 10)]),
    ],
)
def test_large_grids_are_cut_along_their_first_axis(
    rows: int, size: int, cores: int | None, bounds: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert [(piece.start, piece.stop) for piece in grid._pieces(rows, size)] == bounds
