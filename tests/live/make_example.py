"""Record and write the example trace that ships with kplan (``make example-trace``).

    python -m tests.live.make_example [--rows FILE.jsonl] [--limit-s 240] [--concurrency 8]

Serves SmolLM2-135M-Instruct with n-gram lookup, records the prompts that ship (``kplan record``), replays
n-gram and suffix decoding from the token ids, and writes both with ids and recorded steps. A recording that
was cut short goes on when the command is run again; the trace is written once every prompt is answered and
the replay agrees with each recorded step.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import kplan_profiles
from kplan.acceptance import TraceSet, save_traces
from kplan.acceptance.replay import NgramRule, Requests, replay_requests
from kplan.acceptance.store import DATASET
from kplan.acceptance.suffix import SuffixRule
from kplan.cli.app import TERMINATED
from kplan.cli.app import run as kplan
from kplan.export.engines import LOOKUP_WINDOW
from kplan.live.recording import sidecar
from kplan.provenance import Kind, Provenance, file_digest
from tests.acceptance.agreement import Agreement, Served, agreement
from tests.live.install import ENGINES
from tests.live.smol import MODEL, SEATS, K, serve_ngram

PROFILES = Path(kplan_profiles.__file__).parent
PROMPTS = PROFILES / "prompts" / "example.jsonl"
TRACE = PROFILES / "traces" / "example.parquet"
ROWS = Path("runs/example-trace/recorded.jsonl")
SERVED_RULE = NgramRule(K, *LOOKUP_WINDOW)
REPLAYED = (NgramRule(20, *LOOKUP_WINDOW), SuffixRule())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def served(rows: Sequence[dict[str, Any]]) -> list[Served]:
    """Token ids and steps of the rows of ``kplan record``; vLLM lists no steps where none had a draft."""
    told = [row["metrics"]["speculative_decoding"] for row in rows]
    return [
        Served(
            prompt=row["prompt_token_ids"],
            output=row["output_token_ids"],
            accepted=one.get("per_step_accepted") or [],
            drafted=one.get("per_step_drafted") or [],
            chunks=row["chunks"],
        )
        for row, one in zip(rows, told, strict=True)
    ]


def record(url: str, rows: Path, concurrency: int, limit_s: float, *flags: str) -> int:
    """Run ``kplan record`` over the prompts that ship; its exit code."""
    rows.parent.mkdir(parents=True, exist_ok=True)
    load = ["--concurrency", str(concurrency), "--limit-s", str(limit_s)]
    asked = ["--url", url, "--prompts", str(PROMPTS), "--proposer", "ngram", "--out", str(rows)]
    return kplan(["record", *asked, *load, *flags])


def example(requests: Sequence[Served], prompts: Sequence[dict[str, Any]], about: str) -> TraceSet:
    """Both lookups replayed at every position of the requests, in their order."""
    log = Requests(
        request_id=tuple(prompt["id"] for prompt in prompts),
        prompts=tuple(np.array(one.prompt, np.int32) for one in requests),
        outputs=tuple(np.array(one.output, np.int32) for one in requests),
        source=about,
        tokenizer=MODEL,
    )
    found = [replay_requests(log, rule) for rule in REPLAYED]
    notes = tuple(dict.fromkeys(note for one in found for note in one.notes))
    return TraceSet(
        request_id=found[0].request_id,
        prompt_len=found[0].prompt_len,
        proposers={name: trace for one in found for name, trace in one.proposers.items()},
        provenance=Provenance(Kind.MEASURED, about, f"replayed over token ids: {REPLAYED[0]}; {REPLAYED[1]}"),
        tokenizer=MODEL,
        notes=notes,
        loopy=found[0].loopy,
    )


def beside(requests: Sequence[Served], prompts: Sequence[dict[str, Any]]) -> dict[str, pa.Array]:
    """Columns that a trace does not need: the kind of prompt, token ids, and the steps that were served."""
    return {
        DATASET: pa.array([prompt["kind"] for prompt in prompts], pa.string()),
        "prompt_token_ids": pa.array([list(one.prompt) for one in requests], pa.list_(pa.int32())),
        "generated_token_ids": pa.array([list(one.output) for one in requests], pa.list_(pa.int32())),
        "served_accepted": pa.array([one.accepted for one in requests], pa.list_(pa.uint8())),
        "served_drafted": pa.array([one.drafted for one in requests], pa.list_(pa.uint8())),
        "served_chunks": pa.array([one.chunks for one in requests], pa.list_(pa.uint8())),
    }


def answered(rows: Path, prompts: int) -> bool:
    """Whether the recording answers all ``prompts`` as they are now."""
    if not rows.exists() or not sidecar(rows).exists():
        return False
    settings = json.loads(sidecar(rows).read_text(encoding="utf-8"))["settings"]
    return settings["prompts_digest"] == file_digest(PROMPTS) and len(read_rows(rows)) == prompts


def about(meta: dict[str, Any]) -> str:
    """Who served the recording, in one line."""
    low, high = LOOKUP_WINDOW
    days = sorted({run["began"][:10] for run in meta["runs"]})
    return (
        f"kplan record of vLLM {meta['settings']['version']} on a CPU, {', '.join(days)}: {MODEL} (bf16 "
        f"from Q4_1, Apache-2.0), greedy, n-gram K={K}, lookup {low}..{high}, max_num_seqs {SEATS}, "
        f"enforce_eager, concurrency {meta['settings']['concurrency']}; prompts/{PROMPTS.name}"
    )


def _show(found: Agreement) -> None:
    print(
        f"{found.steps} steps, {found.with_draft} with a draft; {found.cut} last steps accepted more than "
        f"the output had room for; {found.merged} came in one chunk with the step before; "
        f"{len(found.different)} requests differ otherwise"
    )
    for line in found.different:
        print(f"  {line}")


def main() -> int:
    """Record what is missing; 0 once the trace is written, 1 when it is not (yet)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, default=ROWS, help="recording to make or go on with")
    parser.add_argument("--limit-s", type=float, default=900.0, help="no request is begun after it")
    parser.add_argument("--concurrency", type=int, default=8, help="requests in flight")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # the server must not outlive this
    prompts = read_rows(PROMPTS)
    if not answered(asked.rows, len(prompts)):
        with tempfile.TemporaryDirectory() as folder, serve_ngram(ENGINES["vllm"], Path(folder)) as server:
            code = record(server.url, asked.rows, asked.concurrency, asked.limit_s)
        if not answered(asked.rows, len(prompts)):
            print("not every prompt is answered: run it again")
            return code or 1
    rows = read_rows(asked.rows)
    requests = served(rows)
    found = agreement(requests, SERVED_RULE)
    _show(found)
    if found.different:
        return 1
    traces = example(requests, prompts, about(json.loads(sidecar(asked.rows).read_text(encoding="utf-8"))))
    TRACE.parent.mkdir(exist_ok=True)
    save_traces(traces, TRACE, beside(requests, prompts))
    print(f"wrote {TRACE} ({TRACE.stat().st_size / 1000:.0f} kB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
