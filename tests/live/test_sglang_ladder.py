"""kplan's sglang-ema policy decides step for step as the class that SGLang ships."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from kplan.export.check import SCRIPTS
from kplan.policy import Observer, StepOutcome, StepView
from kplan.registry import parse_policy
from tests.live.install import Engine
from tests.live.server import environment
from tests.live.verdicts import IN_ENGINE

SPELL_STEPS = 100  # the load stays this long at one batch size and acceptance
GRAPH_SIZES = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
LADDERS: dict[str, dict[str, Any] | None] = {
    "shipped default": None,
    "hysteresis and ceiling": {
        "ema_alpha": 0.3,
        "update_interval": 3,
        "warmup_batches": 4,
        "1": {"candidate_steps": [0, 2, 4, 6], "up_hysteresis": 0.2, "down_hysteresis": -0.1},
        "16": {"candidate_steps": [1, 2, 3], "ceiling_coeff": 1.5},
        "40": {"candidate_steps": [0, 1], "ema_alpha": 0.1},
    },
}


@dataclass(frozen=True)
class FreeStep:
    """Prices every K at nothing: the rule under test looks at acceptance alone."""

    def seconds(self, k: int) -> float:
        """Zero."""
        return 0.0 * k

    def seconds_by_k(self, max_k: int) -> np.ndarray:
        """Zeros."""
        return np.zeros(max_k + 1)

    def seconds_at(self, tokens: int, depth: int) -> float:
        """Zero."""
        return 0.0 * tokens * depth


def _load(seed: int) -> list[tuple[int, list[int]]]:
    """Batches that wander over every slot, and how many drafts each request would accept."""
    rng = Random(seed)
    spells = [(batch, p) for batch in (1, 2, 8, 9, 24, 31, 33, 48, 63) for p in (0.3, 0.6, 0.9)]
    rng.shuffle(spells)
    steps = []
    for batch, p in spells:
        steps += [(batch, [_run_length(rng, p) for _ in range(batch)]) for _ in range(SPELL_STEPS)]
    return steps


def _run_length(rng: Random, p: float) -> int:
    run = 0
    while run < 8 and rng.random() < p:
        run += 1
    return run


def _shipped(
    sglang: Engine, config: Path | None, initial: int, steps: list[tuple[int, list[int]]]
) -> list[int]:
    asked = {"config": config and str(config), "initial": initial, "graph_sizes": GRAPH_SIZES, "steps": steps}
    command = [sglang.python, IN_ENGINE / "drive_sglang_ladder.py"]
    finds = environment() | {"PYTHONPATH": str(SCRIPTS)}  # the operators that its imports need
    done = subprocess.run(
        command, input=json.dumps(asked), check=True, capture_output=True, text=True, env=finds
    )
    answer = done.stdout.rpartition("CHOSEN ")[2]
    chosen: list[int] = json.loads(answer)
    return chosen


def _ours(text: str, steps: list[tuple[int, list[int]]]) -> list[int]:
    policy = parse_policy(text).build()
    assert isinstance(policy, Observer)
    chosen = []
    for batch, would_accept in steps:
        zeros = np.zeros(batch, np.int64)
        requests = np.arange(batch)
        view = StepView(0.0, batch, 0, 0, 8, requests, zeros, zeros, zeros, zeros, FreeStep())
        k = int(policy.choose_k(view))
        chosen.append(k)
        accepted = np.minimum(np.array(would_accept, np.int64), k)
        policy.observe(StepOutcome(batch, 0.0, requests, np.full(batch, k), accepted))
    return chosen


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", LADDERS)
def test_same_k_at_every_step(name: str, seed: int, sglang: Engine, tmp_path: Path) -> None:
    ladder, text, config = LADDERS[name], "sglang-ema", None
    candidates = [1, 3, 5, 7, 0]
    if ladder is not None:
        config = tmp_path / "ladder.json"
        config.write_text(json.dumps(ladder))
        text = f"sglang-ema:{config}"
        candidates = [
            k for slot in ladder.values() if isinstance(slot, dict) for k in slot["candidate_steps"]
        ]
    union = sorted(set(candidates))
    steps = _load(seed)
    shipped = _shipped(sglang, config, union[len(union) // 2], steps)
    assert len(set(shipped)) > 3  # the load makes it move
    assert _ours(text, steps) == shipped
