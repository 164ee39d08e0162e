"""What SGLang does with a config: the YAML, its adaptive JSON, and the findings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kplan.export.current import CurrentConfig, Flags, Severity, short
from kplan.export.engines import SGLANG
from kplan.export.read_vllm import weights
from kplan.export.sglang_rules import (
    ALGORITHMS,
    CHAIN,
    LADDER_ALGORITHMS,
    NGRAM_BREADTH,
    NGRAM_TOKENS,
    PROPOSERS,
    SEATS,
    SPECULATIVE,
    TREE,
    is_llama,
    ladder_policy,
    read_ladder,
)
from kplan.profiles import Tree

_HARMLESS = frozenset(
    (
        *("host", "port", "served-model-name", "api-key", "download-dir", "trust-remote-code", "device"),
        *("random-seed", "log-level", "enable-metrics", "decode-log-interval", "tokenizer-path"),
        *("speculative-draft-model-quantization", "speculative-ngram-min-bfs-breadth", "watchdog-timeout"),
    )
)
_AMBIGUOUS = ("cuda-graph-max-bs", "cuda-graph-bs")
_PAGED = frozenset({"flashinfer", "fa3", "triton"})
"""Attention backends that run a tree on pages of several tokens."""


def read_sglang(values: Mapping[str, Any], in_file: frozenset[str], folder: Path) -> CurrentConfig:
    """The config as SGLang runs it.

    Args:
        values: options by their names as written; SGLang knows them with hyphens alone.
        in_file: those that stand in a YAML file.
        folder: where it is started, and an adaptive JSON is looked for.
    """
    flags = Flags(_unabbreviated(values), folder)
    _check_names(flags, in_file)
    model = flags.text("model-path", "model")
    if model is None:
        flags.say(Severity.REFUSED, "no model-path is given")
    settings, unsimulated = _settings(flags)
    policy, proposer, tree = "off", None, None
    speculative = {name for name in flags.values if name.startswith("speculative-")}
    algorithm = (flags.text("speculative-algorithm") or "").upper()
    drafter = flags.text("speculative-draft-model-path", "speculative-draft-model")
    if algorithm and algorithm not in ALGORITHMS:
        flags.say(Severity.REFUSED, f"speculative-algorithm {short(algorithm)} is unknown to {SGLANG}")
    elif algorithm:
        policy, tree = _drafts(flags, algorithm, model or "")
        _check_rest(flags, algorithm)
        if "max_num_seqs" not in settings:
            flags.say(Severity.CHANGED, f"max-running-requests is not set: with speculation it is {SEATS}")
        proposer = _proposer(algorithm, drafter, tree)
        if proposer is None:
            unsimulated = unsimulated or f"kplan has no price for {algorithm} with these options"
    elif speculative:
        idle = ", ".join(sorted(speculative))
        flags.say(Severity.IGNORED, f"without speculative-algorithm nothing is drafted: {idle}")
    return CurrentConfig(
        engine=SGLANG.name,
        model=model or "",
        policy=policy,
        proposer=proposer,
        drafter=drafter if proposer is not None and proposer != "ngram" else None,
        tree=tree,
        settings=settings,
        findings=flags.concluded(_HARMLESS | speculative, unsimulated),
        unsimulated=unsimulated,
    )


def _unabbreviated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the beginning of one speculative name spelled out, as its argument parser takes it."""
    named = {}
    for name, value in values.items():
        longer = [known for known in SPECULATIVE if known.startswith(name)]
        whole = name.startswith("speculative-") and name not in SPECULATIVE and len(longer) == 1
        named[longer[0] if whole else name] = value
    return named


def _check_names(flags: Flags, in_file: frozenset[str]) -> None:
    for name, value in flags.values.items():
        if "_" in name:
            flags.say(Severity.REFUSED, f"{name} is unrecognized: write {name.replace('_', '-')}")
        elif name.startswith("speculative-") and name not in SPECULATIVE:
            flags.say(Severity.REFUSED, f"{name} is no option of {SGLANG}")
        elif name in in_file and value is None:
            flags.say(Severity.REFUSED, f"{name}: null becomes the text None: leave it out")
        elif name in in_file and name == "enable-dp-attention":
            flags.say(Severity.REFUSED, f"{name} is not taken from a file: put it on the command line")
        elif name in _AMBIGUOUS:
            flags.say(Severity.REFUSED, f"{name} is ambiguous: write {name}-decode or {name}-prefill")


def _settings(flags: Flags) -> tuple[dict[str, Any], str]:
    """Everything but speculation, by the keys of a scenario, and why it is not simulated."""
    kv = flags.text("kv-cache-dtype") or "auto"
    synchronous, uncached = flags.flag("disable-overlap-schedule"), flags.flag("disable-radix-cache")
    eager = flags.text("cuda-graph-backend-decode") == "disabled" or flags.flag("disable-cuda-graph")
    servers = flags.whole("dp-size", "data-parallel-size")
    settings = {
        "tp": flags.whole("tp-size", "tensor-parallel-size", "tp"),
        "max_num_seqs": flags.whole("max-running-requests"),
        "max_model_len": flags.whole("context-length"),
        "gpu_memory_utilization": flags.share("mem-fraction-static"),
        "quantization": weights(flags, flags.text("quantization")),
        "kv_cache_dtype": "fp8" if kv.startswith("fp8") else "bf16" if kv in ("bf16", "bfloat16") else None,
        "prefix_caching": False if uncached else None,
        "async_scheduling": False if synchronous else None,
        "enforce_eager": True if eager else None,
        "replicas": servers if servers is not None and servers > 1 else None,
    }
    unsimulated = ""
    if _attention_ranks(flags):
        unsimulated = "data-parallel attention is not simulated"
    elif (flags.whole("pp-size", "pipeline-parallel-size") or 1) > 1:
        unsimulated = "pipeline parallel stages are not simulated"
    elif flags.flag("enable-lora") or flags.get("lora-paths") is not None:
        unsimulated = "LoRA adapters are not simulated"
    return {key: value for key, value in settings.items() if value is not None}, unsimulated


def _attention_ranks(flags: Flags) -> bool:
    ranks = flags.whole("attn-dp-size", "attention-data-parallel-size") or 1
    return ranks > 1 or bool(flags.flag("enable-dp-attention"))


def _proposer(algorithm: str, drafter: str | None, tree: Tree | None) -> str | None:
    """kplan's name; EAGLE without weights of its own is the target's own MTP layer."""
    if algorithm == "NEXTN" or (algorithm == "EAGLE" and drafter is None):
        return "mtp" if tree is None else None
    name = PROPOSERS.get(algorithm)
    if tree is None or name is None:
        return name
    return f"{name}-tree" if name in ("eagle", "eagle3") else None


def _drafts(flags: Flags, algorithm: str, model: str) -> tuple[str, Tree | None]:
    """(policy text, draft tree or None), and what is to be said of them."""
    steps = flags.whole("speculative-num-steps", least=-1)
    topk = flags.whole("speculative-eagle-topk")
    tokens = flags.whole("speculative-num-draft-tokens", least=0)
    if algorithm == "NGRAM":
        return _ngram(flags, tokens)
    if algorithm not in LADDER_ALGORITHMS | {"STANDALONE"}:
        return "off", None
    if flags.flag("speculative-adaptive"):
        why = _not_adaptive(flags, algorithm, topk)
        if not why:
            return _adaptive(flags, steps, tokens), None
        flags.say(
            Severity.IGNORED, f"speculative-adaptive switches itself off ({why}): the static counts hold"
        )
    if steps is None:
        if topk is not None or tokens is not None:
            flags.say(Severity.REFUSED, "without speculative-num-steps the other counts raise AssertionError")
            return "off", None
        steps, topk, tokens = TREE if is_llama(model, flags.folder) and algorithm != "STANDALONE" else CHAIN
        flags.say(
            Severity.CHANGED,
            f"no count is given: {SGLANG.title} takes {steps} steps, topk {topk} and {tokens} draft tokens "
            f"({'a tree' if topk > 1 else 'a chain'}; Llama gets {TREE}, most others {CHAIN})",
        )
    elif topk is None:
        flags.say(Severity.REFUSED, "speculative-num-steps without speculative-eagle-topk raises TypeError")
        return "off", None
    return _static(flags, steps, topk, tokens)


def _static(flags: Flags, steps: int, topk: int, tokens: int | None) -> tuple[str, Tree | None]:
    if steps < 1:
        flags.say(Severity.WARNING, f"speculative-num-steps {steps} passes every check and drafts nothing")
        return "off", None
    if topk == 1:
        if tokens is not None and tokens != steps + 1:
            flags.say(
                Severity.CHANGED,
                f"speculative-num-draft-tokens {tokens} becomes {steps + 1}: with topk 1 it is num-steps + 1",
            )
        return f"fixed:{steps}", None
    if tokens is None or tokens < 1:
        flags.say(
            Severity.WARNING, "speculative-num-draft-tokens is missing, and a tree needs it: no check says so"
        )
        return "off", None
    tree = Tree(depth=steps, topk=topk, verified=tokens - 1)
    if tree.verified > tree.nodes:
        flags.say(
            Severity.WARNING,
            f"{tokens} draft tokens are more than the {tree.nodes} nodes of {steps} steps and topk {topk}: "
            "no check says so",
        )
    return f"fixed:{tree.verified}", tree


def _ngram(flags: Flags, tokens: int | None) -> tuple[str, Tree | None]:
    breadth = flags.whole("speculative-ngram-max-bfs-breadth") or NGRAM_BREADTH
    tokens = NGRAM_TOKENS if tokens is None else tokens
    if breadth > 1:
        flags.say(
            Severity.NOTE,
            f"NGRAM drafts a tree of {tokens} tokens, up to {breadth} a level; a chain of {tokens - 1} is "
            "simulated (speculative-ngram-max-bfs-breadth 1)",
        )
    flags.say(
        Severity.NOTE, "NGRAM looks up a trie of all text served; the prompt-lookup rule of vLLM is simulated"
    )
    return f"fixed:{tokens - 1}" if tokens > 1 else "off", None


def _not_adaptive(flags: Flags, algorithm: str, topk: int | None) -> str:
    """Why the adaptive steps do not run, "" when they do."""
    if algorithm not in LADDER_ALGORITHMS:
        return f"{algorithm} is not EAGLE or EAGLE3"
    if topk not in (None, 1):
        return f"speculative-eagle-topk is {topk}"
    if _attention_ranks(flags):
        return "attention is data-parallel"
    for name in ("enable-multi-layer-eagle", "enable-two-batch-overlap"):
        if flags.flag(name):
            return f"{name} is on"
    return ""


def _adaptive(flags: Flags, steps: int | None, tokens: int | None) -> str:
    """The policy of the ladder in force."""
    ladder = read_ladder(flags)
    if ladder is None:
        return "off"
    if flags.flag("enable-lora"):
        flags.say(Severity.REFUSED, "LoRA does not go with speculative-adaptive")
    union = sorted({k for key, slot in ladder.items() if key.isdigit() for k in slot["candidate_steps"]})
    if steps is not None and steps not in union:
        flags.say(Severity.REFUSED, f"speculative-num-steps {steps} is none of the candidate_steps {union}")
        return "off"
    first = union[len(union) // 2] if steps is None else steps
    if tokens is not None and tokens != first + 1:
        flags.say(Severity.CHANGED, f"speculative-num-draft-tokens {tokens} becomes {first + 1}")
    return ladder_policy(flags, ladder, steps)


def _check_rest(flags: Flags, algorithm: str) -> None:
    """Combinations that stop a start, whatever the counts are."""
    if (flags.whole("pp-size", "pipeline-parallel-size") or 1) > 1:
        flags.say(Severity.REFUSED, "pipeline parallel stages with speculation stop the start")
    if algorithm in ("NGRAM", "STANDALONE") and _attention_ranks(flags):
        flags.say(Severity.REFUSED, f"{algorithm} does not run with data-parallel attention")
    backend, page = flags.text("attention-backend"), flags.whole("page-size") or 1
    breadth = flags.whole("speculative-ngram-max-bfs-breadth") or NGRAM_BREADTH
    topk = breadth if algorithm == "NGRAM" else flags.whole("speculative-eagle-topk") or 1
    if topk > 1 and backend == "trtllm_mha":
        flags.say(Severity.REFUSED, "trtllm_mha runs topk 1 only")
    if topk > 1 and page > 1 and backend is not None:
        runs = frozenset({"flashinfer"}) if algorithm == "NGRAM" else _PAGED
        if backend not in runs:
            flags.say(
                Severity.REFUSED,
                f"topk {topk} with page-size {page} needs {' or '.join(sorted(runs))}, not {backend}",
            )
