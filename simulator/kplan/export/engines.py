"""What each engine version can run, and where it would crash, ignore or corrupt a plan.

Read from the released code of vLLM 0.32.0 and SGLang 0.5.23 (most of it also run on a CPU). A new engine
version is a new :class:`EngineVersion`; nothing else in this package names a version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kplan.errors import InputError


@dataclass(frozen=True)
class EngineVersion:
    """Capabilities of one released engine.

    Attributes:
        name: ``vllm`` or ``sglang``.
        title: the name as its authors write it.
        version: the release that these facts were read from.
        methods: names of its speculative methods that a plan can ask for.
        table_refused: method or proposer -> what the engine would do with a K that changes with the batch.
        table_caveats: method -> why such a table saves less than predicted, though it runs correctly.
        own_weights: methods whose drafter is a checkpoint of its own, which must be named.
        kv_cache_names: format -> what ``--kv-cache-dtype`` calls it.
        no_async_flag: flag that makes it schedule synchronously.
        eager_flag: flag and value that switch captured graphs off.
        no_prefix_cache: flag and value that switch the cache of shared beginnings off.
        max_len_flag: flag of the longest prompt and output together.
        graph_sizes: captured decode batch sizes that a batch is padded to before its K is looked up; empty
            when the engine looks up the batch itself.
    """

    name: str
    title: str
    version: str
    methods: frozenset[str]
    table_refused: Mapping[str, str]
    table_caveats: Mapping[str, str]
    own_weights: frozenset[str]
    kv_cache_names: Mapping[str, str]
    no_async_flag: str
    eager_flag: tuple[str, str | bool]
    no_prefix_cache: tuple[str, bool]
    max_len_flag: str
    graph_sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.title} {self.version}"


_CRASHES = "the engine crashes as soon as K differs from the maximum"
_NOT_ADAPTED = "its adaptive steps are for EAGLE and EAGLE3 only and switch themselves off"
_TRUNCATES = (
    "the drafter makes its full K and the rest is cut, so a lower K saves verification but no drafting"
)

DEFAULT_GPU_MEMORY = 0.9
"""Share of device memory that plans and vLLM take when nothing is said."""

VLLM = EngineVersion(
    name="vllm",
    title="vLLM",
    version="0.32.0",
    methods=frozenset(
        (
            *("ngram", "ngram_gpu", "suffix", "eagle", "eagle3", "mtp", "draft_model", "medusa"),
            *("mlp_speculator", "dflash", "dspark", "custom_class"),
        )
    ),
    table_refused=MappingProxyType(
        {
            "suffix": _CRASHES,
            "medusa": _CRASHES,
            "ngram_gpu": _CRASHES,
            "custom_class": "the engine ignores the table and drafts the maximum",
            "pard": "the engine silently drafts wrong tokens (first-draft acceptance fell from 1.0 to 0.14)",
        }
    ),
    table_caveats=MappingProxyType(
        {
            "dflash": _TRUNCATES,
            "dspark": _TRUNCATES,
            "mtp": f"with several MTP modules {_TRUNCATES}",
            "ngram": f"on the V2 model runner {_TRUNCATES}",
        }
    ),
    own_weights=frozenset({"eagle", "eagle3", "draft_model", "medusa", "mlp_speculator", "dflash", "dspark"}),
    kv_cache_names=MappingProxyType({"bf16": "bfloat16", "fp8": "fp8"}),
    no_async_flag="no-async-scheduling",
    eager_flag=("enforce-eager", True),
    no_prefix_cache=("enable-prefix-caching", False),
    max_len_flag="max-model-len",
    graph_sizes=(),
)

SGLANG = EngineVersion(
    name="sglang",
    title="SGLang",
    version="0.5.23",
    methods=frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"}),
    table_refused=MappingProxyType({"NGRAM": _NOT_ADAPTED, "STANDALONE": _NOT_ADAPTED}),
    table_caveats=MappingProxyType({}),
    own_weights=frozenset({"EAGLE", "EAGLE3", "STANDALONE"}),
    kv_cache_names=MappingProxyType({"bf16": "bf16", "fp8": "fp8_e4m3"}),
    no_async_flag="disable-overlap-schedule",
    eager_flag=("cuda-graph-backend-decode", "disabled"),
    no_prefix_cache=("disable-radix-cache", True),
    max_len_flag="context-length",
    graph_sizes=(*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)),
)

ENGINES: Mapping[str, EngineVersion] = MappingProxyType({one.name: one for one in (VLLM, SGLANG)})
"""The release of each engine that is written for."""


def release_of(name: str, version: str) -> EngineVersion:
    """The release ``version`` of the engine ``name`` that a user asks for.

    Raises:
        InputError: an engine or a release whose rules are not known.
    """
    if name not in ENGINES:
        raise InputError("engine", name, f"known engines: {', '.join(ENGINES)}", "name one of them")
    known = ENGINES[name]
    if version.removeprefix("v") != known.version:
        raise InputError(
            "--engine-version",
            version,
            f"only the rules of {known} are known",
            "leave it out, and ask your own engine with --check PYTHON",
        )
    return known


GRAPH_TOKENS = 512
"""Largest number of tokens of a step that vLLM captures a CUDA graph for; 1024 on Blackwell."""

LOOKUP_WINDOW = (3, 7)
"""prompt_lookup_min and _max of the recordings that n-gram acceptance is known from (SpecDecode-Bench)."""
