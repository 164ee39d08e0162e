"""``kplan verify`` against a real server: it agrees with the plan it runs, and notices another draft model.

Times of this machine are not calibrated here, so only what can be counted is asserted.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kplan.acceptance import TraceSet
from kplan.acceptance.columns import pack
from kplan.acceptance.store import save_traces
from kplan.cli.app import run
from kplan.config.plan import Plan
from kplan.export import export_vllm
from kplan.provenance import Kind, Provenance, file_digest
from tests.live.install import Engine
from tests.live.plans import drafter, target
from tests.live.plans import plan as exported_plan
from tests.live.server import Server, environment, serve
from tests.live.verdicts import IN_ENGINE
from tests.live.walk import Pair, geometric_mean_accepted
from tests.live_fake.verified import plan

pytestmark = pytest.mark.served

K, CLIENTS, REQUESTS = 4, 4, 120
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 128


@pytest.fixture(scope="module")
def other_pair(vllm: Engine, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The same target with a draft model that is right on 40% of the tokens."""
    folder = tmp_path_factory.mktemp("other-pair")
    command = [str(vllm.python), str(IN_ENGINE / "make_pair.py"), str(folder), "--alpha", "0.4"]
    subprocess.run(command, check=True, env=environment(), capture_output=True)
    return Pair.load(folder)


@pytest.fixture(scope="module")
def planned(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for the pair of alpha 0.7, with the traces that follow from its maps, in a folder."""
    folder = tmp_path_factory.mktemp("plan")
    save_traces(_traces(pair), folder / "pair.parquet")
    made: Plan = plan(
        "fixed:4",
        concurrency=CLIENTS,
        model=str(pair.folder / "target"),
        drafter=str(pair.folder / "draft"),
        hardware="cpu",
        proposer="draft-model",
        traces="pair.parquet",
        traces_hash=file_digest(folder / "pair.parquet"),
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=None,
        enforce_eager=True,
        max_num_seqs=32,
        max_num_batched_tokens=2048,
    )
    (folder / "plan.json").write_text(made.model_dump_json())
    return folder


def _traces(pair: Pair) -> TraceSet:
    """Outputs that begin anywhere on the cycle: what a step of K drafts emits at every position of theirs."""
    right = np.array([pair.draft[token] == pair.target[token] for token in pair.cycle])
    n = len(right)
    emitted = np.ones(n, np.int64)
    alive = np.ones(n, np.bool_)
    for depth in range(K):
        alive &= np.roll(right, -depth)
        emitted += alive
    starts = np.random.default_rng(0).integers(0, n, 400)
    rows = []
    for start in starts:
        # the last of i tokens stands at start + i - 1; the prefill emits one
        acc = emitted[(start + np.arange(OUTPUT_TOKENS) - 1) % n]
        acc[0] = 1
        rows.append(np.minimum(acc, np.arange(OUTPUT_TOKENS, 0, -1)).astype(np.uint8))
    return TraceSet(
        request_id=np.array([str(i) for i in range(len(rows))]),
        prompt_len=np.full(len(rows), PROMPT_TOKENS, np.int32),
        proposers={"draft-model": pack(rows, None, np.ones(len(rows), np.bool_), K)},
        provenance=Provenance(Kind.MEASURED, "the maps of the pair"),
    )


def _serve(vllm: Engine, pair: Pair, draft: Path, folder: Path) -> Iterator[Server]:
    export = export_vllm(
        exported_plan(k=K, enforce_eager=True), target(pair.folder / "target"), drafter("draft-model", draft)
    )
    config = folder / "vllm.yaml"
    config.write_text(export.files["vllm.yaml"])
    with serve(vllm, config) as server:
        yield server


def _verify(
    planned: Path, server: Server, vllm: Engine, out: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    argv = ["verify", str(planned), "--url", server.url, "--engine-python", str(vllm.python), "--json"]
    code = run([*argv, "--requests", str(REQUESTS), "--limit-s", "400", "--out", str(out)])
    told = capsys.readouterr()
    assert code in (0, 1), told.err
    found: dict[str, Any] = json.loads(told.out)
    assert json.loads((out / "verify.json").read_text()) | {"files": found["files"]} == found
    assert "Does the server do what the plan said?" in (out / "report.html").read_text()
    assert found["load_generator"] == "vllm bench serve"
    return found


def _figure(found: dict[str, Any], name: str) -> dict[str, Any]:
    one: dict[str, Any] = next(one for one in found["figures"] if one["name"] == name)
    return one


def test_acceptance_agrees_on_the_planned_pair(
    vllm: Engine, pair: Pair, planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for server in _serve(vllm, pair, pair.folder / "draft", tmp_path):
        found = _verify(planned, server, vllm, tmp_path / "out", capsys)
    length = _figure(found, "acceptance_length")
    assert length["measured"] == pytest.approx(length["predicted"], rel=0.02)
    assert "acceptance" not in found["causes"]
    assert _figure(found, "drafted")["measured"] == K
    shares = [one["measured"] for one in found["acceptance_by_position"]]
    assert sum(shares) == pytest.approx(geometric_mean_accepted(pair.alpha, K), rel=0.03)


def test_another_draft_model_is_noticed_and_named(
    vllm: Engine,
    pair: Pair,
    other_pair: Pair,
    planned: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for server in _serve(vllm, pair, other_pair.folder / "draft", tmp_path):
        found = _verify(planned, server, vllm, tmp_path / "out", capsys)
    assert found["verdict"] == "off"
    assert "acceptance" in found["causes"]
    length = _figure(found, "acceptance_length")
    assert length["verdict"] == "off"
    assert length["measured"] < 0.7 * length["predicted"]
    assert any("record it" in line for line in found["suggestions"])
