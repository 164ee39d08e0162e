"""What vLLM does with a config: its options in all the spellings that it takes, and the findings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kplan.export.current import CurrentConfig, Flags, Severity, short, whole_number
from kplan.export.engines import LOOKUP_WINDOW, VLLM
from kplan.export.table import KRange, table_text
from kplan.export.vllm_rules import (
    PROPOSERS,
    SPECULATIVE_KEYS,
    SUFFIX_DEPTH,
    SYNCHRONOUS,
    WITHOUT_WEIGHTS,
    method_named,
    read_table,
)

_SEATS_UNKNOWN = 1024
"""Batch sizes that a table is read for where max-num-seqs is left to the engine: the most of its defaults."""

_HARMLESS = frozenset(
    (
        *("host", "port", "served-model-name", "api-key", "download-dir", "trust-remote-code", "seed"),
        *("chat-template", "uvicorn-log-level", "disable-log-requests", "disable-log-stats", "tokenizer"),
        *("per-request-spec-decode-metrics", "enable-logging-iteration-details", "revision", "load-format"),
    )
)


def read_vllm(values: Mapping[str, Any], in_file: frozenset[str], folder: Path) -> CurrentConfig:
    """The config as vLLM runs it.

    Args:
        values: options by their names as written, dashes or underscores.
        in_file: those that stand in a YAML file.
        folder: where it is started.
    """
    flags = Flags(_by_dashes(values), folder)
    for name, value in values.items():
        if value is False and "_" in name and name in in_file:
            flags.say(
                Severity.IGNORED,
                f"{name}: false is dropped (vLLM looks for --no-{name}): write {name.replace('_', '-')}",
            )
            flags.values = {key: v for key, v in flags.values.items() if key != name.replace("_", "-")}
    model = flags.text("model", "model-tag")
    if model is None:
        flags.say(Severity.REFUSED, "no model is named")
    settings = _settings(flags)
    unsimulated = _unsimulated(flags)
    policy, proposer, drafter = "off", None, None
    given = _speculative(flags)
    if given is None:
        if flags.text("per-request-spec-decode-metrics") not in (None, "none"):
            flags.say(Severity.REFUSED, "per-request-spec-decode-metrics needs speculation")
    else:
        method, policy, drafter = _drafts(flags, given, settings)
        proposer = "pard" if method == "draft_model" and given.get("parallel_drafting") else None
        proposer = proposer or PROPOSERS.get(method)
        if proposer is None and not unsimulated:
            unsimulated = f"kplan has no price for the method {method}"
    return CurrentConfig(
        engine=VLLM.name,
        model=model or "",
        policy=policy,
        proposer=proposer,
        drafter=drafter,
        tree=None,
        settings=settings,
        findings=flags.concluded(_HARMLESS, unsimulated),
        unsimulated=unsimulated,
    )


def _by_dashes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by names with dashes; ``no-x: true`` is ``x: false``."""
    named = {}
    for name, value in values.items():
        dashed = name.replace("_", "-")
        if dashed.startswith("no-") and value is True:
            named[dashed.removeprefix("no-")] = False
        else:
            named[dashed] = value
    return named


def _settings(flags: Flags) -> dict[str, Any]:
    """Everything but speculation, by the keys of a scenario."""
    seats = flags.whole("max-num-seqs")
    budget = flags.whole("max-num-batched-tokens")
    if seats is not None and budget is not None and budget < seats:
        flags.say(Severity.REFUSED, f"max-num-batched-tokens {budget} is below max-num-seqs {seats}")
    longest = flags.get("max-model-len")
    context = None if str(longest).strip().lower() in ("auto", "-1") else flags.whole("max-model-len")
    kv = flags.text("kv-cache-dtype") or "auto"
    settings = {
        "tp": flags.whole("tensor-parallel-size"),
        "dp": flags.whole("data-parallel-size"),
        "max_num_seqs": seats,
        "max_num_batched_tokens": budget,
        "max_model_len": context,
        "gpu_memory_utilization": flags.share("gpu-memory-utilization"),
        "prefix_caching": flags.flag("enable-prefix-caching"),
        "async_scheduling": flags.flag("async-scheduling"),
        "enforce_eager": flags.flag("enforce-eager"),
        "quantization": weights(flags, flags.text("quantization")),
        "kv_cache_dtype": "fp8" if kv.startswith("fp8") else "bf16" if kv == "bfloat16" else None,
    }
    return {key: value for key, value in settings.items() if value is not None}


def weights(flags: Flags, named: str | None) -> str | None:
    """The format that a quantization stands for; an unknown one is noted."""
    if named is None:
        return None
    for word, dtype in (("fp8", "fp8"), ("awq", "int4"), ("gptq", "int4")):
        if word in named.lower():
            return dtype
    flags.say(Severity.NOTE, f"quantization {named} is not simulated: the model's own weights are")
    return None


def _unsimulated(flags: Flags) -> str:
    if (flags.whole("pipeline-parallel-size") or 1) > 1:
        return "pipeline parallel stages are not simulated"
    if flags.flag("enable-lora") or flags.get("lora-modules") is not None:
        return "LoRA adapters are not simulated"
    return ""


def _speculative(flags: Flags) -> dict[str, Any] | None:
    """The keys of speculative-config by underscores, with the spec-* options; None without speculation."""
    given = flags.get("speculative-config")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (json.JSONDecodeError, RecursionError):
            flags.say(Severity.REFUSED, f"speculative-config {short(given)} is no JSON")
            return None
    if given is not None and not isinstance(given, dict):
        flags.say(Severity.REFUSED, f"speculative-config must be a mapping, not {short(given)}")
        return None
    found = None if given is None else {str(key).replace("-", "_"): value for key, value in given.items()}
    names = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
    for name, key in names.items():
        value = flags.get(name)
        if value is None:
            continue
        found = found or {}
        if key in found:
            flags.say(Severity.REFUSED, f"{name} and {key} of speculative-config exclude each other")
        found[key] = value
    return found


def _drafts(flags: Flags, given: dict[str, Any], settings: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """(method, policy text, weights of the drafter), and what is to be said of them."""
    for key in sorted(set(given) - SPECULATIVE_KEYS):
        fix = "; write draft_tensor_parallel_size" if key == "tensor_parallel_size" else ""
        flags.say(Severity.REFUSED, f"speculative-config has no key {short(key)}{fix}")
    model = given["model"] if isinstance(given.get("model"), str) else None
    method = method_named(given.get("method"), model)
    if method not in VLLM.methods | {"extract_hidden_states"}:
        flags.say(Severity.REFUSED, f"{short(method)} is no speculative method of {VLLM}")
    if model is None and method not in WITHOUT_WEIGHTS:
        flags.say(Severity.REFUSED, f"{method} needs the model that drafts")
    _check_details(flags, given, method, settings)
    k = _static_k(flags, given, method)
    table = None
    if given.get("num_speculative_tokens_per_batch_size") is not None and k is not None:
        table = _table(flags, given, method, k, settings)
    drafter = model if method not in ("ngram", "suffix", "custom_class") else None
    if table is None:
        return method, f"fixed:{k}" if k else "off", drafter
    return method, table_text(table), drafter


def _static_k(flags: Flags, given: Mapping[str, Any], method: str) -> int | None:
    value = given.get("num_speculative_tokens")
    if value is None:
        if method == "suffix":
            return SUFFIX_DEPTH
        if method == "mtp":
            flags.say(Severity.NOTE, "num_speculative_tokens is left to the checkpoint: 1 is assumed")
            return 1
        flags.say(Severity.REFUSED, "num_speculative_tokens is missing")
        return None
    k = whole_number(value)
    if k is None or k < 1:
        flags.say(
            Severity.REFUSED,
            f"num_speculative_tokens {short(value)} must be a whole number > 0 (no speculation: leave "
            "speculative-config out)",
        )
        return None
    return k


def _check_details(flags: Flags, given: Mapping[str, Any], method: str, settings: Mapping[str, Any]) -> None:
    ranks, tp = given.get("draft_tensor_parallel_size"), settings.get("tp", 1)
    if ranks is not None and whole_number(ranks) not in (1, tp):
        flags.say(
            Severity.REFUSED, f"draft_tensor_parallel_size {short(ranks)} must be 1 or the target's {tp}"
        )
    if settings.get("async_scheduling") and method in SYNCHRONOUS:
        flags.say(Severity.REFUSED, f"async-scheduling: true does not go with {method}")
    if given.get("rejection_sample_method") == "synthetic":
        flags.say(
            Severity.CORRUPT,
            "rejection_sample_method synthetic invents acceptance: the text is not the model's",
        )
    if method in ("ngram", "ngram_gpu"):
        low, high = _window(given)
        if low is None or high is None or low < 1 or low > high:
            flags.say(Severity.REFUSED, "prompt_lookup_min must be >= 1 and at most prompt_lookup_max")
        elif (low, high) != LOOKUP_WINDOW:
            flags.say(
                Severity.NOTE,
                f"it looks up {low} to {high} tokens; the acceptance that is simulated was recorded with "
                f"{LOOKUP_WINDOW[0]} to {LOOKUP_WINDOW[1]}",
            )
    if method == "suffix":
        flags.say(Severity.NOTE, "suffix decoding needs the package arctic-inference in vLLM's environment")


def _window(given: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(least, most) tokens that an n-gram looks up; one that is given stands for both."""
    low, high = given.get("prompt_lookup_min"), given.get("prompt_lookup_max")
    if low is None and high is None:
        return 5, 5
    return whole_number(high if low is None else low), whole_number(low if high is None else high)


def _table(
    flags: Flags, given: Mapping[str, Any], method: str, k: int, settings: Mapping[str, Any]
) -> tuple[KRange, ...] | None:
    """The table that is in force; None where the static K is."""
    seats = settings.get("max_num_seqs", _SEATS_UNKNOWN)
    table, said = read_table(given["num_speculative_tokens_per_batch_size"], seats, k)
    for severity, text in said:
        flags.say(severity, text)
    if table is None:
        return None
    if settings.get("dp", 1) > 1:
        flags.say(
            Severity.IGNORED,
            f"with data-parallel-size {settings['dp']} the table is dropped: every batch drafts {k}",
        )
        return None
    if method == "custom_class":
        flags.say(
            Severity.IGNORED, f"a custom class drafts num_speculative_tokens {k} whatever the table says"
        )
        return None
    changes = any(one.k != k for one in table)
    if given.get("parallel_drafting") and changes:
        flags.say(Severity.CORRUPT, f"a table with parallel_drafting: {VLLM.table_refused['pard']}")
    elif method in VLLM.table_refused and changes:
        flags.say(Severity.CRASH, f"a table with {method}: {VLLM.table_refused[method]}")
    if method in VLLM.table_caveats:
        flags.say(Severity.NOTE, VLLM.table_caveats[method])
    if changes and not settings.get("enforce_eager"):
        flags.say(
            Severity.NOTE, "on the V1 model runner a table downgrades full CUDA graphs to piecewise ones"
        )
    return table
