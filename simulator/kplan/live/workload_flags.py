"""Flags and data set that tell an engine's load generator to send a plan's requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kplan.errors import InputError
from kplan.live.workload import Demand

CHUNK = 16
"""Tokens of a random prompt that share one seed in the data set; each such piece has a number of its own."""


@dataclass(frozen=True)
class Target:
    """The server to load.

    Attributes:
        url: scheme, host and port.
        engine: ``vllm`` or ``sglang``.
        model: the name that requests give.
        tokenizer: name or folder of its tokenizer.
        api_key: sent with every request; the generators take it from their environment.
    """

    url: str
    engine: str
    model: str
    tokenizer: str
    api_key: str | None = None


def vllm_flags(target: Target, sent: Demand, load: Mapping[str, Any], result: Path) -> list[str]:
    """Flags of ``vllm bench serve``; writes its dataset beside ``result``.

    Raises:
        InputError: arrivals that it does not draw for texts.
    """
    flags = [
        "--backend", "openai", "--base-url", target.url, "--endpoint", "/v1/completions",
        "--model", target.model, "--tokenizer", target.tokenizer, "--num-prompts", str(len(sent)),
        "--temperature", "0", "--disable-tqdm", "--ready-check-timeout-sec", "0", "--seed", "0",
        "--save-result", "--save-detailed", "--result-dir", str(result.parent),
        "--result-filename", result.name,
    ]  # fmt: skip
    if sent.concurrency is not None:
        flags += ["--max-concurrency", str(sent.concurrency)]
    dataset = result.with_name("requests.jsonl")
    flags += ["--dataset-path", str(dataset)]
    if sent.prompts is None:
        _write_lines(dataset, _timed(sent))
        return [*flags, "--dataset-name", "timed_trace", "--timed-trace-chunk-hash-size", str(CHUNK)]
    rows = zip(_texts(sent), sent.output_len.tolist(), strict=True)
    _write_lines(dataset, [{"prompt": text, "output_tokens": tokens} for text, tokens in rows])
    flags += ["--dataset-name", "custom", "--custom-output-len", "-1", "--skip-chat-template"]
    return [*flags, "--disable-shuffle", "--ignore-eos", *_rate(sent, load, bursts=True)]


def takes(engine: str, sent: Demand) -> bool:
    """Whether the engine's load generator can send these requests: texts, or vLLM's of any length."""
    if sent.prompts is None:
        return engine == "vllm"
    return all(one.text is not None for one in sent.prompts)


def _texts(sent: Demand) -> list[str]:
    assert sent.prompts is not None
    return [one.text or "" for one in sent.prompts]


def _timed(sent: Demand) -> list[dict[str, Any]]:
    """Requests of random tokens at their moments; no two share a beginning."""
    at = np.zeros(len(sent)) if sent.arrival_s is None else sent.arrival_s
    counts = -(-sent.prompt_len // CHUNK)
    last = np.cumsum(counts)
    return [
        {
            "timestamp": float(when),
            "input_length": int(prompt),
            "output_length": int(output),
            "hash_ids": list(range(int(end - count), int(end))),
        }
        for when, prompt, output, end, count in zip(
            at, sent.prompt_len, sent.output_len, last, counts, strict=True
        )
    ]


def _rate(sent: Demand, load: Mapping[str, Any], *, bursts: bool) -> list[str]:
    """Flags of an open loop. Raises InputError for arrivals that the generator does not draw."""
    if sent.concurrency is not None:
        return []
    arrivals, burstiness = load["arrivals"], load["burstiness"]
    if arrivals == "ramp" or load.get("replay") is not None or (not bursts and burstiness != 1.0):
        raise InputError(
            "--prompts", "given", "the load generator sends texts at a steady rate only",
            "leave --prompts out" if bursts else "plan for Poisson arrivals or --concurrency",
        )  # fmt: skip
    flags = ["--request-rate", repr(float(load["qps"]))]
    if not bursts:
        return flags
    return [*flags, "--burstiness", "inf" if arrivals == "constant" else repr(float(burstiness))]


def sglang_flags(target: Target, sent: Demand, load: Mapping[str, Any], result: Path) -> list[str]:
    """Flags of ``sglang.bench_serving``; writes its dataset beside ``result``.

    Raises:
        InputError: arrivals that it does not draw.
    """
    dataset = result.with_name("requests.jsonl")
    rows = zip(_texts(sent), sent.output_len.tolist(), strict=True)
    _write_lines(
        dataset,
        [{"messages": [{"role": "user", "content": text}], "max_tokens": tokens} for text, tokens in rows],
    )
    flags = [
        "--backend", "sglang-oai-chat", "--base-url", target.url, "--model", target.model,
        "--tokenizer", target.tokenizer, "--dataset-name", "openai", "--dataset-path", str(dataset),
        "--num-prompts", str(len(sent)), "--temperature", "0", "--disable-tqdm", "--warmup-requests", "0",
        "--seed", "0", "--output-file", str(result), "--output-details",
    ]  # fmt: skip
    if sent.concurrency is not None:
        flags += ["--max-concurrency", str(sent.concurrency)]
    return [*flags, *_rate(sent, load, bursts=False)]


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
