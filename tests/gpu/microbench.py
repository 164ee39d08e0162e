"""Time the rows of a plan on a GPU, within a budget, into tables for ``kplan calibrate --tables``.

    python -m tests.gpu.microbench --plan plan.jsonl --hardware h100-sxm --out tables --budget-s 480

Needs torch, uses vLLM's kernels where vLLM is importable, does not need kplan. Rows come in the plan's order
until the budget is spent; every row is on disk before the next begins, so a run that was cut off has tables
too. ``--device cpu`` shows that it runs; times of a CPU calibrate no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.gpu import attention
from tests.gpu.device import facts
from tests.gpu.kernels import OPERATIONS, Target, TooLargeError
from tests.gpu.limits import MOST_FAILURES_IN_A_ROW, Budget
from tests.gpu.tables import Tables
from tests.gpu.timing import time_calls

SEED = 0
TOLERANCE = 0.05
"""Largest difference of attention to float32 arithmetic: a few roundings to bf16 (2^-8) of values up to 4."""


@dataclass
class Log:
    """What became of the rows: counts by operation, and why some have no time."""

    done: Counter[str] = field(default_factory=Counter)
    left_out: list[dict[str, object]] = field(default_factory=list)
    failures_in_a_row: int = 0

    def leave_out(self, row: dict[str, Any], why: str) -> None:
        """Note a row without a time."""
        self.left_out.append({"row": row, "why": why.splitlines()[0][:200] if why else "no reason given"})


def check_attention(device: torch.device, plan: Sequence[dict[str, Any]]) -> None:
    """Compare the attention kernel with float32 arithmetic on small shapes.

    Raises SystemExit where it is wrong: what would be timed is then not the work that is priced.
    """
    heads = next((row for row in plan if row["op"] == "generation_attention"), None)
    if heads is None:
        return
    sizes = (heads["num_heads"], heads["num_kv_heads"], heads["head_dim"])
    kernel = attention.find(device, sizes[2])
    for query_len, kv_len in ((1, 40), (4, 40), (40, 40)):
        apart = attention.difference(kernel, attention.Shape(2, query_len, kv_len, *sizes))
        if not apart < TOLERANCE:
            raise SystemExit(
                f"{kernel.source}: got outputs {apart:.3f} from float32 arithmetic at query length "
                f"{query_len}, at most {TOLERANCE} is rounding; nothing was timed"
            )


def measure(device: torch.device, plan: Sequence[dict[str, Any]], tables: Tables, budget: Budget) -> Log:
    """Time the rows until the budget is spent, or the device fails row after row."""
    log = Log()
    for row in plan:
        if not budget.left or log.failures_in_a_row >= MOST_FAILURES_IN_A_ROW:
            break
        try:
            work = OPERATIONS[row["op"]](Target.of(device), row)
            timed = time_calls(device, work.calls)
        except TooLargeError as error:
            log.leave_out(row, str(error))
            continue
        except RuntimeError as error:  # a shape without a kernel, memory that ran out; torch has one class
            log.leave_out(row, str(error))
            log.failures_in_a_row += 1
            continue
        log.failures_in_a_row = 0
        log.done[row["op"]] += 1
        tables.add(
            row,
            {
                "kernel_source": work.source,
                "l2": "cold" if work.cold else "warm",
                "replays": timed.replays,
                "spread": round(timed.spread, 4),
                "latency_ms": float(f"{timed.seconds * 1e3:.6g}"),
            },
        )
    return log


def main(argv: Sequence[str] | None = None) -> int:
    """Run the plan; 0 when it was followed or cut by the budget, 1 when the device failed."""
    start_s = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plan", type=Path, required=True, help="what to measure, from tests.gpu.plan")
    parser.add_argument("--hardware", required=True, help="name of the GPU's profile: tables begin with it")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables, empty or new")
    parser.add_argument("--budget-s", type=float, default=480.0, help="wall time [480]")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("--device: got 'cuda', torch sees no CUDA device; run on a machine with one", file=sys.stderr)
        return 2
    device = torch.device(arguments.device, 0) if arguments.device == "cuda" else torch.device("cpu")
    plan = [json.loads(line) for line in arguments.plan.read_text(encoding="utf-8").splitlines()]
    label = f"torch{torch.__version__.split('+')[0]}"
    tables = Tables(arguments.out, arguments.hardware, label)
    torch.manual_seed(SEED)
    check_attention(device, plan)
    before = facts(device)
    budget = Budget(arguments.budget_s, start_s)
    log = measure(device, plan, tables, budget)
    planned = Counter(row["op"] for row in plan)
    lost = log.failures_in_a_row >= MOST_FAILURES_IN_A_ROW
    tables.write_run(
        {
            "hardware": arguments.hardware,
            "device": before,
            "device_after": facts(device),
            "budget_s": arguments.budget_s,
            "spent_s": round(budget.spent_s, 1),
            "planned": dict(planned),
            "done": dict(log.done),
            "left_out": log.left_out,
            "device_lost": lost,
        }
    )
    for op, count in planned.items():
        print(f"{op:<22}{log.done[op]:>5} of {count:>4} rows", file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
