"""The exporter's facts, the profiles and the policies speak of the same engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from kplan.errors import InputError
from kplan.export import SGLANG, VLLM, EngineVersion, export_sglang, export_vllm
from kplan.profiles import Drafter, Model, available, load_drafter, load_engine, load_model
from tests.export.rules import sglang_config, vllm_k
from tests.export.sample import answered


@pytest.mark.parametrize("facts", [VLLM, SGLANG], ids=str)
def test_exporter_and_profile_are_of_one_release(facts: EngineVersion) -> None:
    profile = load_engine(facts.name)
    assert facts.version == profile.version
    assert set(profile.table_methods) <= facts.methods
    assert set(profile.table_methods).isdisjoint(facts.table_refused)
    if facts.graph_sizes:
        assert facts.graph_sizes == profile.graphs.sizes()


def test_every_shipped_drafter_exports_to_both_engines() -> None:
    exported = 0
    for model, drafter in shipped_pairs():
        plan = answered("fixed:3", k=3, model=model.name, proposer=drafter.proposer)
        assert vllm_k(export_vllm(plan, model, drafter).files["vllm.yaml"]) == [3] * 256
        config, _ = sglang_config(export_sglang(plan, model, drafter).files)
        assert config["speculative-num-steps"] == 3
        assert config["model-path"] == model.hf_id
        assert config.get("speculative-draft-model-path") == drafter.hf_id
        exported += 1
    assert exported >= 6


def shipped_pairs() -> Iterator[tuple[Model, Drafter]]:
    """Every shipped model with every proposer that it has a drafter for."""
    for line in available("models"):
        model = load_model(line.name)
        for proposer in ("ngram", "eagle", "eagle3", "draft-model"):
            with suppress(InputError):
                yield model, load_drafter(proposer, model)
