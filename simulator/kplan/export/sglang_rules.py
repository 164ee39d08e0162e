"""What SGLang 0.5.23 makes of its speculative options and of an adaptive JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kplan.errors import InputError
from kplan.export.current import MAX_BATCH, Flags, Severity
from kplan.export.engines import SGLANG
from kplan.export.ladder import RANGES, SHIPPED, problems, slots_of
from kplan.export.sglang import padded
from kplan.export.table import KRange, compress, lookup, table_text
from kplan.files import read_text

ALGORITHMS = frozenset(
    ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP")
)
"""Values of ``speculative-algorithm``, in any case; NEXTN means EAGLE."""

LADDER_ALGORITHMS = frozenset({"EAGLE", "EAGLE3", "NEXTN"})
"""Those that adaptive steps run with."""

PROPOSERS = {"EAGLE": "eagle", "EAGLE3": "eagle3", "STANDALONE": "draft-model", "NGRAM": "ngram"}
"""Algorithm -> kplan's proposer."""

TREE, CHAIN = (5, 4, 8), (3, 1, 4)
"""(steps, topk, draft tokens) where none is given: of Llama, and of most other models."""

NGRAM_TOKENS, NGRAM_BREADTH = 12, 10
SEATS = 48
"""``max-running-requests`` under speculation where it is not set."""

MAX_LADDER_BYTES = 1_000_000

SPECULATIVE = frozenset(
    f"speculative-{name}"
    for name in (
        *("algorithm", "draft-model-path", "draft-model", "draft-model-revision", "draft-load-format"),
        *("num-steps", "eagle-topk", "num-draft-tokens", "dflash-block-size", "dspark-block-size"),
        *("dspark-sps-table-path", "dspark-confidence-sts-path", "accept-threshold-single"),
        *("dspark-align-verify-tokens-to-graph-tier", "accept-threshold-acc", "use-rejection-sampling"),
        *("token-map", "attention-mode", "draft-attention-backend", "dsa-topk-backend"),
        *("draft-kv-cache-dtype", "draft-window-size", "moe-runner-backend", "moe-a2a-backend"),
        *("enable-w4a4-mxfp4-megamoe", "draft-model-quantization", "adaptive", "adaptive-config"),
        *("ngram-min-bfs-breadth", "ngram-max-bfs-breadth", "ngram-match-type", "ngram-max-trie-depth"),
        *("ngram-capacity", "ngram-external-corpus-path", "ngram-external-sam-budget"),
        *("ngram-external-corpus-max-tokens", "domino-candidate-pool-size", "use-block-verification"),
        "draft-sink-size",
    )
)
"""Its options that begin so; any other is refused."""


def is_llama(model: str, folder: Path) -> bool:
    """Whether the model is a LlamaForCausalLM: by its config.json, else by its name."""
    config = folder / model / "config.json"
    if config.is_file() and config.stat().st_size <= MAX_LADDER_BYTES:
        try:
            return "LlamaForCausalLM" in json.loads(config.read_text(encoding="utf-8"))["architectures"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
    return "llama" in model.lower()


def read_ladder(flags: Flags) -> Mapping[str, Any] | None:
    """The adaptive JSON in force, the shipped one where none is named; None where SGLang stops at it."""
    named = flags.get("speculative-adaptive-config")
    if named is None:
        return SHIPPED
    if not isinstance(named, str):
        flags.say(Severity.REFUSED, "speculative-adaptive-config must be the path of a JSON file")
        return None
    path = flags.folder / named
    try:
        ladder = json.loads(read_text("the adaptive JSON", path, MAX_LADDER_BYTES))
    except InputError as error:
        flags.say(Severity.REFUSED, f"the adaptive JSON {named[:200]} {error.bound}")
        return None
    except (ValueError, RecursionError):
        flags.say(Severity.REFUSED, f"{named} is no JSON")
        return None
    found = problems(ladder)
    for one in found:
        flags.say(Severity.REFUSED if one.refused else Severity.WARNING, one.text)
    return None if any(one.refused for one in found) else ladder


def ladder_policy(flags: Flags, ladder: Mapping[str, Any], steps: int | None) -> str:
    """The policy of a ladder: a table by batch size where every slot has one candidate, else the EMA rule."""
    slots = slots_of(ladder)
    if all(len(slot["candidate_steps"]) == 1 for slot in slots.values()):
        ranges = _written(slots)
        run = padded(ranges)
        if run != ranges:
            flags.say(
                Severity.CHANGED,
                f"batches are padded to a captured graph size before their K is looked up: "
                f"{table_text(ranges)} runs as {table_text(run)}",
            )
        return table_text(run)
    start = "" if steps is None else f",start={steps}"
    if ladder == SHIPPED:
        return f"sglang-ema:start={steps}" if start else "sglang-ema"
    heard = {key: value for key, value in ladder.items() if key in RANGES}
    for batch, slot in slots.items():
        heard[str(batch)] = {key: slot[key] for key in slot if key in RANGES or key == "candidate_steps"}
    return f"sglang-ema:ladder={json.dumps(heard, separators=(',', ':'))}{start}"


def _written(slots: Mapping[int, Mapping[str, Any]]) -> tuple[KRange, ...]:
    """The table that single candidates spell, up to a batch past every key and captured size."""
    keys = [key for key in slots if key <= MAX_BATCH] or [min(slots)]
    top = max(min(keys[-1], MAX_BATCH), SGLANG.graph_sizes[-1]) + 1
    starts = [1, *keys[1:]]
    ends = [*(start - 1 for start in starts[1:]), top]
    ranges = [
        KRange(start, end, slots[key]["candidate_steps"][0])
        for key, start, end in zip(keys, starts, ends, strict=True)
        if start <= end
    ]
    return compress(lookup(ranges))
