"""The engines' own rules, written again from engines/*.md and not from the exporter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from kplan.config.plan import BatchRange

VLLM_KEYS = {
    "model",
    "max-num-seqs",
    "max-num-batched-tokens",
    "tensor-parallel-size",
    "data-parallel-size",
    "max-model-len",
    "enable-prefix-caching",
    "speculative-config",
    "quantization",
    "kv-cache-dtype",
}
VLLM_SPECULATIVE_KEYS = {
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "num_speculative_tokens_per_batch_size",
}
SGLANG_KEYS = {
    "model-path",
    "quantization",
    "kv-cache-dtype",
    "tp-size",
    "context-length",
    "disable-radix-cache",
    "max-running-requests",
    "speculative-algorithm",
    "speculative-draft-model-path",
    "speculative-draft-model-quantization",
    "speculative-num-steps",
    "speculative-eagle-topk",
    "speculative-num-draft-tokens",
    "speculative-adaptive",
    "speculative-adaptive-config",
    "speculative-ngram-max-bfs-breadth",
}
SGLANG_SHARED = {
    "ema_alpha",
    "update_interval",
    "warmup_batches",
    "down_hysteresis",
    "up_hysteresis",
    "ceiling_coeff",
}
GRAPH_SIZES = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]


def planned_k(table: Sequence[BatchRange], batch: int) -> int:
    """K of a plan's table at a batch size; above its last end the last K holds."""
    for entry in table:
        if entry.start <= batch and (entry.end is None or batch <= entry.end):
            return entry.k
    return max(table, key=lambda entry: entry.start).k


def vllm_lookup(rows: Sequence[Sequence[int]], max_num_seqs: int, static_k: int) -> list[int]:
    """What vLLM makes of a table (its start-up checks included): K of batch sizes 1..max_num_seqs."""
    ordered = sorted(tuple(row) for row in rows)
    if ordered[0][0] < 1:
        raise ValueError("must be positive")
    if ordered[0][0] != 1:
        raise ValueError("the first range must start at 1")
    for (_, end, k), following in zip(ordered, [*ordered[1:], None], strict=True):
        if k < 0:
            raise ValueError("values must be >= 0")
        if following is not None and following[0] <= end:
            raise ValueError("ranges overlap")
    out, current = [], 0
    for batch in range(1, max_num_seqs + 1):
        for start, end, k in ordered:
            if start <= batch <= end:
                current = k
        out.append(min(current, static_k))
    return out


def vllm_k(text: str) -> list[int]:
    """K at batch sizes 1..max-num-seqs of a vLLM YAML; refuses what vLLM's parser and config would refuse."""
    config = yaml.safe_load(text)
    assert set(config) <= VLLM_KEYS
    batches = config["max-num-seqs"]
    if "speculative-config" not in config:
        return [0] * batches
    speculative = config["speculative-config"]
    assert set(speculative) <= VLLM_SPECULATIVE_KEYS
    static_k = speculative["num_speculative_tokens"]
    assert type(static_k) is int
    assert static_k > 0
    rows = speculative.get("num_speculative_tokens_per_batch_size")
    if rows is None:
        return [static_k] * batches
    assert all(type(value) is int for row in rows for value in row)
    assert all(k <= static_k for _, _, k in rows), "vLLM would clamp this K without a word"
    return vllm_lookup(rows, batches, static_k)


def padded(batch: int) -> int:
    """The captured decode-graph size that SGLang pads a batch to."""
    return next((size for size in GRAPH_SIZES if size >= batch), batch)


def sglang_config(files: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(YAML content, ladder in force or None); refuses what SGLang would refuse or change."""
    config = yaml.safe_load(files["sglang.yaml"])
    assert set(config) <= SGLANG_KEYS
    assert None not in config.values()
    for name, text in files.items():
        if name.endswith(".json"):
            check_ladder(json.loads(text))
    if "speculative-algorithm" not in config:
        assert not any(key.startswith("speculative") for key in config)
        return config, None
    steps = config["speculative-num-steps"]
    assert config["speculative-eagle-topk"] == 1
    assert config["speculative-num-draft-tokens"] == steps + 1
    assert steps >= 1
    if "speculative-adaptive" not in config:
        assert "speculative-adaptive-config" not in config
        return config, None
    assert config["speculative-adaptive"] is True
    assert config["speculative-algorithm"] in ("EAGLE", "EAGLE3")
    ladder = json.loads(files[config["speculative-adaptive-config"]])
    union = {k for key, slot in ladder.items() if key.isdigit() for k in slot["candidate_steps"]}
    assert steps in union
    return config, ladder


def check_ladder(ladder: Mapping[str, Any]) -> None:
    """SGLang's checks, and those that it should make: unknown keys are not there to be ignored."""
    slots = {key: slot for key, slot in ladder.items() if key.isdigit()}
    assert slots
    assert set(ladder) - set(slots) <= SGLANG_SHARED
    for slot in slots.values():
        assert slot["candidate_steps"]
        assert all(type(k) is int and k >= 0 for k in slot["candidate_steps"])
        assert set(slot) <= SGLANG_SHARED | {"candidate_steps"}


def sglang_slot(ladder: Mapping[str, Any], batch: int) -> list[int]:
    """Candidates of the slot that a batch is routed to."""
    keys = sorted(int(key) for key in ladder if key.isdigit())
    below = [key for key in keys if key <= padded(batch)]
    return list(ladder[str(below[-1] if below else keys[0])]["candidate_steps"])
