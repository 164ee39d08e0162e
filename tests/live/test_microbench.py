"""The GPU's microbenchmarks on a CPU: they run, cover the plan, compute what they should, and are stopped."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from kplan.profiles import Decoder
from tests.gpu.plan import Row, measurements, text
from tests.gpu.tables import RESULTS
from tests.live.install import Engine
from tests.live.server import environment

REPOSITORY = Path(__file__).parents[2]
TINY = Decoder(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=512)
LIMIT_S = 240


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """A plan of a model that a CPU times in seconds."""
    rows = measurements(
        TINY,
        tokens=(1, 16),
        query_lengths=(1, 4),
        batches=(1, 4),
        contexts=(16, 64),
        copied_bytes=(4096, 65536),
    )
    path = tmp_path_factory.mktemp("plan") / "plan.jsonl"
    path.write_text(text(rows))
    return path, rows


def _python(vllm: Engine, *argv: str) -> subprocess.CompletedProcess[str]:
    env = environment() | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [str(vllm.python), *argv]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_every_row_of_the_plan_has_a_time(vllm: Engine, plan: tuple[Path, list[Row]], tmp_path: Path) -> None:
    path, rows = plan
    out = tmp_path / "tables"
    argv = ["-m", "tests.gpu.microbench", "--plan", str(path), "--hardware", "tiny", "--device", "cpu"]
    done = _python(vllm, *argv, "--out", str(out))
    assert done.returncode == 0, done.stderr
    planned = Counter(str(row["op"]) for row in rows)
    ran = json.loads((out / "run.json").read_text())
    assert ran["done"] == ran["planned"] == planned
    assert ran["left_out"] == []
    assert ran["device"]["versions"]["vllm"].startswith(vllm.version)
    for op, count in planned.items():
        (table,) = out.glob(f"tiny_{op}_torch*.csv")
        with table.open() as lines:
            held = list(csv.DictReader(lines))
        assert len(held) == count
        assert set(RESULTS) < set(held[0])
        assert all(float(row["latency_ms"]) > 0 for row in held)
    by_kernels = {row["kernels"]: float(row["latency_ms"]) for row in _rows(out, "launch")}
    assert (
        by_kernels["100"] > 10 * by_kernels["1"]
    )  # a hundred kernels of one value each take longer than one
    assert {row["kernel_source"] for row in _rows(out, "elementwise")} == {"vllm._C"}

    again = _python(vllm, *argv, "--out", str(tmp_path / "cut"), "--budget-s", "0")
    assert again.returncode == 0, again.stderr
    cut = json.loads((tmp_path / "cut" / "run.json").read_text())
    assert cut["done"] == {}
    assert cut["planned"] == planned


def _rows(out: Path, op: str) -> list[dict[str, str]]:
    (table,) = out.glob(f"tiny_{op}_*.csv")
    with table.open() as lines:
        return list(csv.DictReader(lines))


CHECK = """
import torch
from tests.gpu import attention
torch.manual_seed(1)
device = torch.device("cpu")
shapes = [attention.Shape(2, queries, 40, 4, 2, 16) for queries in (1, 4, 40)]
right = [attention.difference(attention.find(device, 16), shape) for shape in shapes]

class TopLeft(attention.Torch):
    def masks(self, shape):
        return True  # torch then masks from the first token on, not up to the last

print(max(right), attention.difference(TopLeft(device), shapes[1]))
"""


def test_an_attention_kernel_that_is_wrong_shows(vllm: Engine) -> None:
    done = _python(vllm, "-c", CHECK)
    assert done.returncode == 0, done.stderr
    right, wrong = map(float, done.stdout.split())
    assert right < 0.05 < 0.5 < wrong


LOST = """
import sys, time, torch
from pathlib import Path
from tests.gpu import kernels, microbench
from tests.gpu.limits import Budget
from tests.gpu.tables import Tables

def lost(target, sizes):
    raise RuntimeError("CUDA error: an illegal memory access")

kernels.OPERATIONS["copy"] = lost
rows = [{"op": "launch", "kernels": 1}, {"op": "gemm", "m": 1, "n": 2**20, "k": 2**20}]
rows += [{"op": "copy", "bytes": i + 1} for i in range(20)]
tables, budget = Tables(Path(sys.argv[1]), "x", "y"), Budget(60, time.monotonic())
log = microbench.measure(torch.device("cpu"), rows, tables, budget)
print(dict(log.done), len(log.left_out), log.left_out[0]["why"], log.left_out[1]["why"], sep=";")
"""


def test_a_lost_device_ends_the_run_and_rows_that_do_not_fit_are_left_out(
    vllm: Engine, tmp_path: Path
) -> None:
    done = _python(vllm, "-c", LOST, str(tmp_path / "tables"))
    assert done.returncode == 0, done.stderr
    counts, left_out, large, lost = done.stdout.strip().split(";")
    assert counts == "{'launch': 1}"
    assert int(left_out) == 1 + 8  # the 2 TB matrix, then eight failures of twenty
    assert large == "2199.0 GB of inputs"
    assert lost == "CUDA error: an illegal memory access"


def test_a_run_without_a_gpu_says_so_and_leaves_nothing(
    vllm: Engine, plan: tuple[Path, list[Row]], tmp_path: Path
) -> None:
    argv = ["-m", "tests.gpu.microbench", "--plan", str(plan[0]), "--hardware", "h200"]
    done = _python(vllm, *argv, "--out", str(tmp_path / "tables"))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "--device: got 'cuda', torch sees no CUDA device; run on a machine with one"
    ]
    assert not (tmp_path / "tables").exists()


def test_the_script_goes_from_plan_to_tables(
    vllm: Engine, plan: tuple[Path, list[Row]], tmp_path: Path
) -> None:
    command = [str(REPOSITORY / "tests/gpu/run.sh"), "--device", "cpu", "--plan", str(plan[0])]
    command += ["--hardware", "h200", "--gpu-python", str(vllm.python), "--out", str(tmp_path / "run")]
    env = os.environ | environment() | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    stages = (tmp_path / "run" / "stages.tsv").read_text().splitlines()
    assert [line.split("\t")[:2] for line in stages[:2]] == [["stage", "result"], ["microbench", "done"]]
    assert (tmp_path / "run" / "tables" / "run.json").is_file()
    # Times of a CPU at toy sizes hold no regime of a GPU: the fit refuses them in one line.
    assert stages[2].startswith("calibrate\tfailed (2)")
    assert "are needed; add measurements" in (tmp_path / "run" / "logs" / "calibrate.log").read_text()
    assert done.returncode == 1
