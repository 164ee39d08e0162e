"""Small files that every reader accepts: what the fuzzers mutate.

A seed is the bytes of a file, made once a process. Most are shipped, or are those of the tests of their area.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kplan.acceptance import save_traces
from kplan.export.files import plan_json
from kplan.latency.fit_tables import VIDUR_MATRICES, VIDUR_MODEL
from kplan.search.storage import opened
from tests.acceptance.made import recording_row, set_of, trace_of
from tests.acceptance.served import aiperf_row, bench_result, sglang_row, told, vllm_row
from tests.acceptance.test_reference_damage import frame
from tests.report.pictures import pictured
from tests.workload.test_log import KNOWN

SHIPPED = Path(str(files("kplan_profiles")))


def shipped(*names: str) -> list[bytes]:
    """Files of kplan_profiles, without what YAML says in comments: a mutation of it changes nothing."""
    return [_bare((SHIPPED / name).read_bytes()) for name in names]


def _bare(text: bytes) -> bytes:
    return b"\n".join(line for line in text.split(b"\n") if not line.lstrip().startswith(b"#"))


def as_json(record: object) -> bytes:
    """One object."""
    return json.dumps(record).encode()


def as_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """JSONL."""
    return b"".join(as_json(row) + b"\n" for row in rows)


def as_parquet(table: pa.Table | pd.DataFrame, **options: Any) -> bytes:
    """A parquet file."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(table) if isinstance(table, pd.DataFrame) else table, sink, **options)
    return sink.getvalue()


def written(write: Callable[[Path], object], name: str) -> bytes:
    """The file that ``write`` makes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        return path.read_bytes()


def own_trace() -> bytes:
    """kplan's own parquet: two requests."""
    made = set_of(trace_of([[1, 2, 1], [1, 1]], 4, [[0, 3, 3], [0, 0]]), "ngram")
    return written(lambda path: save_traces(made, path), "t.parquet")


def served() -> dict[str, bytes]:
    """Recordings of each server by the reader's name."""
    two = told([2, 0], [3, 3], 3)
    plain = {"usage": {"prompt_tokens": 9, "completion_tokens": 4}, "chunks": [1, 2, 1]}
    return {
        "vllm": as_lines([vllm_row([2, 0], [3, 3], 5, chunks=[1, 3, 1]), vllm_row([1], [3], 3)]),
        "vllm chunks": as_lines([plain, plain]),
        "sglang": as_lines([sglang_row([1, 1, 0, 1], 8, [1, 1, 2, 4]), sglang_row([2], 3)]),
        "aiperf": as_lines([aiperf_row(two, 5), aiperf_row(None, 3)]),
        "bench totals": as_json(bench_result([0.75, 0.5], 40, 80, 50)),
        "aiperf totals": as_json({"pooled_spec_decode_acceptance_histogram": {"0": 3, "1": 5, "3": 2}}),
    }


def request_logs() -> list[bytes]:
    """Of every kind: text, gzip, parquet."""
    texts = [text.encode() for text in KNOWN.values()]
    sessions = b"t_s,input_tokens,output_tokens,session_id,think_s,hash_ids_16\n"
    sessions += b"0,40,2,a,,[1 2]\n1,50,3,a,0.5,1 2 3\n"
    table = pa.table({"t_s": [0.0, 1.5], "input_tokens": [9, 8], "output_tokens": [2, 3]})
    return [*texts, sessions, gzip.compress(texts[0], mtime=0), as_parquet(table)]


def token_ids() -> list[bytes]:
    """Requests to replay."""
    rows = [{"prompt_token_ids": [1, 2, 3, 1], "generated_token_ids": [2, 3, 1], "request_id": "a"}] * 2
    text = b'request_id,prompt_token_ids,generated_token_ids\na,"[1, 2, 3]",2 3\nb,1 2,\n'
    return [as_lines(rows), text, as_parquet(pa.Table.from_pylist(rows))]


_TABLES: dict[str, list[dict[str, Any]]] = {
    "h_gemm_x": [
        {"gemm_dtype": "bfloat16", "m": m, "n": 4096, "k": 4096, "latency_ms": 0.01} for m in (1, 16)
    ],
    "h_generation_attention_x": [
        {
            "kv_cache_dtype": "bfloat16",
            "batch_size": b,
            "kv_len": 1024,
            "num_heads": 32,
            "num_kv_heads": 8,
            "latency_ms": 0.02,
            "query_len": 1,
            "head_dim": 128,
            "l2": "cold",
        }
        for b in (1, 8)
    ],
    "h_allreduce_vllm_x": [
        {"backend": "vllm_graph", "num_gpus": 2, "message_size_elements": 4096, "latency_ms": 0.01}
    ],
    "h_step_latency_x": [
        {
            "model": "Meta-Llama-3.1-8B",
            "gemm_dtype": "bfloat16",
            "phase": "decode",
            "batch": 1,
            "total_ms": 9.0,
            "attention_ms": 1.0,
            "gemm_ms": 5.0,
            "logits_ms": 1.0,
        }
    ],
    "h_elementwise_x": [{"num_tokens": 8, "bytes_per_token": 4096, "latency_ms": 0.01}],
    "h_sampler_x": [{"rows": 4, "vocab": 32000, "latency_ms": 0.01}],
    "h_vidur_linear_ops": [
        {"model": VIDUR_MODEL, "tp": 1, "num_tokens": 8, **dict.fromkeys(VIDUR_MATRICES, 0.1)}
    ],
}


def kernel_table(file: str) -> list[bytes]:
    """A table of kernel times, CSV or parquet as its name says."""
    stem, _, kind = file.rpartition(".")
    made = pd.DataFrame(_TABLES[stem])
    return [made.to_csv(index=False).encode() if kind == "csv" else as_parquet(made)]


STEP = {"step_s": 0.01, "decode_requests": 4, "k": 3, "context": 900, "proposer": "ngram"}
SERVER_LOG = (
    "INFO 01-01 GPU KV cache size: 40,208 tokens\n"
    "INFO Iteration(7): 0 context requests, 0 context tokens, 4 generation requests, 16 generation tokens, "
    "iteration elapsed time: 9.50 ms, GPU KV cache usage: 12.5%\n"
)


def step_logs() -> list[bytes]:
    """kplan's own schema, the plugin's, and a server's own log."""
    plugin = {
        "t": 1.0,
        "idx": 3,
        "ms": 8.0,
        "gap_ms": 9.0,
        "gen_r": 4,
        "gen_t": 16,
        "ctx_r": 0,
        "ctx_t": 0,
        "kv": 0.1,
    }
    head = {"log": {"proposer": "ngram", "kv_capacity_tokens": 40_208}}
    return [as_lines([STEP, STEP]), as_lines([head, plugin, plugin | {"idx": 4}]), SERVER_LOG.encode()]


METRICS = {
    "vllm": """# HELP vllm:num_requests_running Requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0"} 40.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 30.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 10.0
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{le="+Inf"} 9.0
vllm:inter_token_latency_seconds_count{engine="0"} 9.0
vllm:inter_token_latency_seconds_sum{engine="0"} 0.5
""",
    "sglang": """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{tp_rank="0"} 2.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{tp_rank="0"} 100.0
""",
}


def streams(engine: str) -> bytes:
    """What an engine streams of one answer."""
    if engine == "vllm":
        events: list[dict[str, Any]] = [
            {"id": "c", "choices": [{"token_ids": [5], "text": "a", "prompt_token_ids": [1, 2]}]},
            {"id": "c", "choices": [{"token_ids": [6, 7], "finish_reason": "length"}]},
            {
                "choices": [],
                "usage": {"prompt_tokens": 2, "completion_tokens": 3},
                "metrics": {"speculative_decoding": told([1], [3], 3)},
            },
        ]
    else:
        meta = {"id": "s", "prompt_tokens": 2, "finish_reason": None, "spec_verify_ct": 1}
        events = [
            {"output_ids": [5], "meta_info": {**meta, "completion_tokens": 1}},
            {
                "output_ids": [5, 6, 7],
                "meta_info": {**meta, "completion_tokens": 3, "finish_reason": {"type": "length"}},
            },
        ]
    return b"".join(b"data: " + as_json(one) + b"\n\n" for one in events) + b"data: [DONE]\n\n"


def plan() -> bytes:
    """plan.json with everything that a page is drawn from."""
    return plan_json(pictured()).encode()


def board() -> bytes:
    """leaderboard.json of one policy in one cell."""
    row = {
        "workload": "gsm8k",
        "proposer": "eagle3",
        "kind": "closed",
        "load": 2.0,
        "replicas": 1,
        "policy": "fixed:1",
        "text": "fixed:1",
        "speedup": 1.5,
        "ci95": [1.4, 1.6],
        "oracle_share": 0.9,
        "oracle_share_ci95": [0.8, 1.0],
        "regret": 1.0,
        "regret_ci95": None,
        "switches": 0.0,
        "proposer_switches": None,
        "tpot_ms": 5.0,
        "tok_s": 300.0,
        "mean_batch": 2.0,
        "mean_k": 1.0,
        "saturated": False,
        "steady": True,
        "oracle": False,
        "runnable": True,
        "why_not": "",
    }
    standing = {
        "policy": "fixed:1",
        "cells": 1,
        "shares": 1,
        "mean_oracle_share": 0.9,
        "ci95": [0.8, 1.0],
        "worst_oracle_share": 0.9,
        "mean_regret": 1.0,
        "worst_regret": 1.0,
        "fallen_behind": 0,
        "oracle": False,
        "runnable": True,
    }
    scenario = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "engine": "vllm"}
    return as_json(
        {
            "kind": "simulated",
            "rows": [row],
            "summary": [standing],
            "notes": ["n"],
            "replications": 2,
            "scenario": scenario,
        }
    )


def journal() -> bytes:
    """A study of two trials, as a search leaves it."""
    logging.getLogger("optuna").setLevel(logging.ERROR)

    def write(path: Path) -> None:
        with opened(str(path)) as storage:
            study = optuna.create_study(storage=storage, study_name="s", direction="minimize")
            study.set_user_attr("search", {"family": "fixed"})
            for value in (1.0, 2.0):
                trial = study.ask()
                trial.suggest_int("k", 1, 7)
                trial.set_user_attr("policy", "fixed:3")
                study.tell(trial, value)

    return written(write, "s.journal")


def specdecode() -> bytes:
    """Two lines of SpecDecode-Bench."""
    return as_lines([recording_row(), recording_row(id="8")])


def reference() -> bytes:
    """Two requests of the reference parquet."""
    return as_parquet(frame())


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]},
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
}
MOE_CONFIG = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 102400,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
}
LADDER = {"4": {"candidate_steps": [1, 3]}, "32": {"candidate_steps": [0, 1]}, "ema_alpha": 0.2}
VLLM_YAML = b"""model: meta-llama/Llama-3.1-8B-Instruct
max-num-seqs: 256
max-num-batched-tokens: 8192
gpu-memory-utilization: 0.9
speculative-config: '{"method": "eagle3", "model": "x/y", "num_speculative_tokens": 3}'
"""
SGLANG_YAML = b"""model-path: meta-llama/Llama-3.1-8B-Instruct
speculative-algorithm: EAGLE3
speculative-draft-model-path: x/y
speculative-num-steps: 3
speculative-eagle-topk: 1
speculative-num-draft-tokens: 4
max-running-requests: 64
cuda-graph-bs: [1, 2, 4, 8]
"""
SCENARIO = b"""qps: 64
model: llama-3.1-8b
proposer: eagle3
workload: sharegpt
policy: "table:1-64=3,65-=1"
slo-tpot-ms: 20.5
replicas: auto
prefix-caching: true
"""
PROMPTS = (
    b'{"prompt": "hello", "max_tokens": 9}\n{"messages": [{"role": "user", "content": "x"}]}\n'
    b'{"prompt_token_ids": [1, 2, 3]}\n',
    b"a prompt\nand another\n",
    b'[{"id": "a", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}]',
)
BENCH_LOAD = {
    "completed": 2,
    "ttfts": [0.1, 0.2],
    "itls": [[0.01, 0.02], []],
    "errors": ["", ""],
    "duration": 1.5,
    "start_times": [5.0, 5.5],
    "input_lens": [9, 8],
    "output_lens": [3, 1],
}
RECORDING_META = {
    "schema_version": 1,
    "settings": {"model": "m"},
    "runs": [{"closed": True, "checks": [{"name": "tokens", "ok": True, "words": "w"}]}],
}
RECORDING_ROWS = as_lines(
    [
        {
            "index": 0,
            "run": 0,
            "id": "prompt 1",
            "chunks": [1, 2],
            "prompt_token_ids": [1],
            "output_token_ids": [2, 3, 4],
            "usage": {"prompt_tokens": 1, "completion_tokens": 3},
            "finish_reason": "length",
            "sent_s": 0.0,
            "chunk_s": [0.1, 0.2],
        }
    ]
)
FIGURES = {
    "schema_version": 1,
    "proposer": "eagle3",
    "kind": "histogram",
    "recorded_k": 2,
    "values": [4.0, 3.0, 3.0],
    "steps": 10,
    "requests": 2,
    "drafted": 20,
    "how": "measured",
    "source": "made",
    "note": "",
    "notes": [],
}
CSV_STEPS = (
    b"request_id,prompt_len,output_len,position,accepted,drafted\na,9,6,1,2,3\na,9,6,4,0,3\nb,5,4,1,1,3\n"
)
TPOT = (
    b"concurrency,tpot_ms,k,proposer,acceptance_length,prompt_tokens,output_tokens\n"
    b"1,5.0,3,eagle,2.5,100,201\n8,6,0,,,100,201\n"
)
