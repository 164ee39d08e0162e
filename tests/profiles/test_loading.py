"""Finding profiles: names, paths, mistakes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

import kplan_profiles
from kplan.errors import InputError
from kplan.profiles import (
    KINDS,
    available,
    load_calibration,
    load_drafter,
    load_engine,
    load_hardware,
    load_model,
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_shipped_profile_loads_and_carries_its_source(kind: str) -> None:
    lines = available(kind)
    assert lines
    for line in lines:
        assert line.summary
        assert line.provenance.source
    loader = {
        "hardware": load_hardware,
        "models": load_model,
        "calibrations": load_calibration,
        "engines": load_engine,
    }
    if kind in loader:
        for line in lines:
            loaded = loader[kind](line.name)
            # a GPU may have several calibrations, one per engine measured on it
            assert line.name.startswith(getattr(loaded, "hardware", getattr(loaded, "name", "?")))


def test_every_drafter_can_be_reached_from_a_target() -> None:
    reached = set()
    for model in available("models"):
        for proposer in known_proposers():
            with suppress(InputError):
                reached.add(load_drafter(proposer, load_model(model.name)).name)
    assert reached == {line.name for line in available("drafters")}


def known_proposers() -> list[str]:
    """As the refusal of an unknown one lists them."""
    with pytest.raises(InputError) as error:
        load_drafter("none", load_model("qwen3-8b"))
    return error.value.bound.removeprefix("known proposers: ").split(", ")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: load_model("lama-3.1-8b"), ["lama-3.1-8b", "llama-3.1-8b", "qwen3-8b"]),
        (lambda: load_hardware("h100"), ["h100", "did you mean h100-nvl or h100-pcie or h100-sxm"]),
        (lambda: load_engine("vlm"), ["did you mean vllm"]),
        (lambda: load_calibration("a10"), ["did you mean a100"]),
        (lambda: load_drafter("eagel", load_model("qwen3-8b")), ["did you mean eagle", "ngram", "suffix"]),
        (
            lambda: load_drafter("draft-model", load_model("mixtral-8x7b")),
            ["mixtral-8x7b", "eagle3", "self-kv", "ngram", "suffix", "--drafter"],
        ),
        (lambda: available("drafter"), ["did you mean drafters"]),
        (lambda: load_model("no/such.yaml"), ["no such file"]),
    ],
)
def test_unknown_names_are_answered_in_one_line_with_what_exists(
    call: Callable[[], object], told: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    for text in told:
        assert text in message


def test_hugging_face_ids_name_models_too() -> None:
    assert load_model("Qwen/Qwen3-8B") == load_model("qwen3-8b")


def _copy_of_shipped(kind: str, shipped: str, tmp_path: Path, **changes: object) -> Path:
    source = Path(kplan_profiles.__file__).parent / kind / f"{shipped}.yaml"
    record = yaml.safe_load(source.read_text(encoding="utf-8")) | changes
    target = tmp_path / f"{shipped}.yaml"
    target.write_text(yaml.safe_dump(record), encoding="utf-8")
    return target


def test_a_users_file_is_read_by_path(tmp_path: Path) -> None:
    path = _copy_of_shipped("models", "qwen3-8b", tmp_path, name="mine", kv_dtype="fp8")
    assert load_model(path).kv_bytes_per_token() == load_model("qwen3-8b").kv_bytes_per_token() / 2


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"wheels": 4}, "wheels"),
        ({"tied_embeddings": "perhaps"}, "tied_embeddings"),
        ({"decoder": {}}, "layers"),
    ],
)
def test_a_wrong_key_in_a_users_file_is_named(tmp_path: Path, changes: dict[str, object], key: str) -> None:
    path = _copy_of_shipped("models", "qwen3-8b", tmp_path, **changes)
    with pytest.raises(InputError, match=key):
        load_model(path)


def test_a_figure_without_a_source_is_refused(tmp_path: Path) -> None:
    path = _copy_of_shipped("hardware", "h100-sxm", tmp_path, sources={"other": "somewhere"})
    with pytest.raises(InputError, match="source"):
        load_hardware(path)


def test_engine_limits_follow_memory_and_speculation() -> None:
    # vLLM: >= 70 GB serves 8192 tokens and 1024 requests; SGLang caps running requests at 48 when it drafts.
    hardware = load_hardware("h100-sxm")
    assert load_engine("vllm").limits(hardware, drafting=True) == (8192, 1024)
    sglang = load_engine("sglang")
    assert sglang.limits(hardware, drafting=True)[1] == 48
    assert sglang.limits(hardware, drafting=False)[1] > 48


def test_captured_sizes_are_those_of_the_engines() -> None:
    vllm, sglang = load_engine("vllm").graphs.sizes(), load_engine("sglang").graphs.sizes()
    assert vllm[:5] == (1, 2, 4, 8, 16)
    assert [b - a for a, b in pairwise(vllm) if a >= 256] == [16] * 16
    # SGLang pads a batch of 31 to 32 and of 41 to 44.
    assert min(size for size in sglang if size >= 31) == 32
    assert min(size for size in sglang if size >= 41) == 44
