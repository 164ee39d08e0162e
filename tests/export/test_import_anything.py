"""Whatever a config says, reading it gives findings and never fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kplan.export import Severity, source_of_file
from kplan.export.read_sglang import read_sglang
from kplan.export.read_vllm import read_vllm
from kplan.export.sglang_rules import SPECULATIVE
from kplan.export.vllm_rules import SPECULATIVE_KEYS

VLLM_KEYS = (
    *(
        "model",
        "max-num-seqs",
        "max_num_seqs",
        "max-num-batched-tokens",
        "max-model-len",
        "speculative-config",
    ),
    *("spec-method", "spec-tokens", "data-parallel-size", "tensor-parallel-size", "gpu-memory-utilization"),
    *("kv-cache-dtype", "quantization", "async-scheduling", "no-async-scheduling", "enable-lora", "x\ny_z"),
)
SGLANG_KEYS = (
    *(
        "model-path",
        "tp-size",
        "dp-size",
        "max-running-requests",
        "context-length",
        "page-size",
        "lora-paths",
    ),
    *("attention-backend", "mem-fraction-static", "kv-cache-dtype", "pp-size", "attn-dp-size", "x\ny_z"),
    *sorted(SPECULATIVE),
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.sampled_from([10**30, -(10**30), 1.5, 1e300, float("nan"), float("inf")])
    | st.sampled_from(["ngram", "EAGLE", "suffix", "mtp", "4", "8k", "1.5K", "auto", "a/b", "[ngram]", "{"])
    | st.text(max_size=6)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
)
tables = st.lists(st.lists(st.integers(-1, 40) | values, min_size=2, max_size=4), max_size=4)
speculative = st.dictionaries(
    st.sampled_from([*sorted(SPECULATIVE_KEYS), "foo"]), values | tables, max_size=6
) | st.fixed_dictionaries(
    {
        "method": st.sampled_from(["ngram", "suffix", "draft_model", "custom_class", "nope"]),
        "num_speculative_tokens": st.integers(1, 6) | values,
        "num_speculative_tokens_per_batch_size": tables,
    }
)


@given(
    given=st.dictionaries(st.sampled_from(VLLM_KEYS), values, max_size=6),
    drafts=st.none() | speculative,
)
def test_any_vllm_config_reads(given: dict[str, Any], drafts: dict[str, Any] | None) -> None:
    content = given if drafts is None else given | {"speculative-config": drafts}
    config = read_vllm(content, frozenset(content), Path())
    assert config.policy
    assert all("\n" not in one.line for one in config.findings)
    assert config.runs or config.findings[0].severity in (
        Severity.REFUSED,
        Severity.CRASH,
        Severity.CORRUPT,
    )


@given(given=st.dictionaries(st.sampled_from(SGLANG_KEYS), values, max_size=8))
def test_any_sglang_config_reads(given: dict[str, Any]) -> None:
    config = read_sglang(given, frozenset(given), Path())
    assert config.policy
    assert all("\n" not in one.line for one in config.findings)


@pytest.mark.parametrize("deep", [50, 5000])
def test_a_nested_file_is_read_or_refused_in_a_line(deep: int, tmp_path: Path) -> None:
    from kplan.errors import InputError

    file = tmp_path / "x.yaml"
    file.write_text("model: m\nspeculative-config: " + "[" * deep + "]" * deep)
    try:
        config = source_of_file(file, "vllm").read()
    except InputError as error:
        assert "is not YAML" in str(error)  # noqa: PT017 - either is right
    else:
        assert config.findings[0].severity is Severity.REFUSED


def test_aliases_do_not_multiply(tmp_path: Path) -> None:
    """Nine levels of nine aliases are 400 million texts when they are written out."""
    from kplan.errors import InputError

    lines = ["model: m", "a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    file = tmp_path / "x.yaml"
    file.write_text("\n".join([*lines, "speculative-config: *a9", "max-num-seqs: *a9"]))
    assert yaml.safe_load(file.read_text())["a0"] == ["x"]
    with pytest.raises(InputError, match="its aliases make"):
        source_of_file(file, "vllm")
