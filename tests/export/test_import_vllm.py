"""A vLLM config reads as vLLM runs it: against the recording of 45 files, and back from what is exported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given

from kplan.config.plan import Plan
from kplan.errors import InputError
from kplan.export import (
    CurrentConfig,
    Severity,
    against_model,
    export_vllm,
    source_of_command,
    source_of_file,
)
from kplan.export.current import FATAL
from kplan.policy import TablePolicy
from kplan.registry import parse_policy
from tests.export.rules import planned_k
from tests.export.sample import DRAFTERS, MODEL, FakeModel, answered, table_plans

HEAD = "model: m\nmax-num-seqs: 32\n"


def config_of(tmp_path: Path, text: str) -> CurrentConfig:
    file = tmp_path / "vllm.yaml"
    file.write_text(text, encoding="utf-8")
    return source_of_file(file, "vllm").read()


def said(config: CurrentConfig, severity: Severity) -> list[str]:
    return [one.text for one in config.findings if one.severity is severity]


def ks(policy: str, batches: int) -> list[int]:
    built = parse_policy(policy).build()
    assert isinstance(built, TablePolicy)
    return [int(k) for k in built.table(batches)[1:]]


# Files of the recording that its own parser takes for another reason than the config's: what it cannot know.
NEEDS_THE_MODEL = {"41_mtp_on_llama.yaml", "43_dflash.yaml", "45_draft_maxlen.yaml", "24_suffix.yaml"}
DELIBERATE = {"29_synthetic_badlen.yaml", "36_unknown_topkey.yaml", "28_synthetic.yaml"}


def test_what_vllm_refused_is_found_and_what_it_ran_reads_the_same(shared_dir: Path) -> None:
    """Each of the 45 recorded files but those that only a model's files or vLLM's list of flags can tell."""
    folder = shared_dir / "engines" / "vllm_cpu" / "yaml"
    lines = [line for line in (folder / "VERDICTS.txt").read_text().splitlines() if " -> " in line]
    assert len(lines) == 45
    for line in lines:
        name, _, verdict = line.partition(" -> ")
        if name in NEEDS_THE_MODEL | DELIBERATE:
            continue
        config = source_of_file(folder / name, "vllm").read()
        accepted = verdict.startswith("OK") and "WOULD RAISE" not in verdict
        refused = said(config, Severity.REFUSED)
        assert (not refused) == accepted, (name, refused)
        lookup = re.search(r"lookup=\[(.*?)\]", verdict)
        if lookup is not None:
            assert ks(config.policy, 32) == [int(k) for k in lookup[1].split(", ")], name


@pytest.mark.parametrize(
    "spelling",
    [
        "speculative-config:\n  method: ngram\n  num_speculative_tokens: 4\n",
        "speculative_config:\n  method: ngram\n  num-speculative-tokens: 4\n",
        'speculative-config: \'{"method": "ngram", "num_speculative_tokens": 4}\'\n',
        "spec-method: ngram\nspec-tokens: 4\n",
    ],
)
def test_every_accepted_spelling_is_the_same_config(spelling: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, HEAD + spelling)
    assert (config.policy, config.proposer) == ("fixed:4", "ngram")
    assert config.runs


def test_a_command_line_is_the_same_config() -> None:
    command = (
        "CUDA_VISIBLE_DEVICES=0 /opt/bin/vllm serve m --max_num_seqs=32 -tp 2 --no-enable-prefix-caching \\\n"
        "  --speculative-config.method eagle3 --speculative-config.model a/b "
        "--speculative-config.num_speculative_tokens 3 --max-model-len 8k"
    )
    config = source_of_command(command, None).read()
    assert (config.engine, config.model, config.policy, config.drafter) == ("vllm", "m", "fixed:3", "a/b")
    assert config.settings == {
        "tp": 2,
        "max_num_seqs": 32,
        "prefix_caching": False,
        "max_model_len": 8000,
    }
    as_json = """python -m vllm.entrypoints.openai.api_server --model m
        --speculative-config '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3}'"""
    assert source_of_command(as_json, None).read().policy == "fixed:3"


@pytest.mark.parametrize(
    ("rows", "policy", "says"),
    [
        ("[[9, 16, 4], [1, 8, 1]]", "table:1-8=1,9-=4", "sorted"),
        ("[[1, 4, 4], [9, 12, 2]]", "table:1-8=4,9-=2", "batches 5..8 are in no row and keep K = 4"),
        ("[[1, 32, 9]]", "fixed:4", "clamped to num_speculative_tokens 4"),
    ],
)
def test_a_table_is_told_as_it_runs(rows: str, policy: str, says: str, tmp_path: Path) -> None:
    table = f"  num_speculative_tokens_per_batch_size: {rows}\n"
    spec = "speculative-config:\n  method: ngram\n  num_speculative_tokens: 4\n"
    config = config_of(tmp_path, HEAD + spec + table)
    assert config.policy == policy
    assert any(says in text for text in said(config, Severity.CHANGED))


@pytest.mark.parametrize(
    ("method", "extra", "severity"),
    [
        ("suffix", "", Severity.CRASH),
        ("ngram_gpu", "", Severity.CRASH),
        ("medusa", "  model: a/b\n", Severity.CRASH),
        ("draft_model", "  model: a/b\n  parallel_drafting: true\n", Severity.CORRUPT),
        ("custom_class", "  model: my.Proposer\n", Severity.IGNORED),
        ("ngram", "data-parallel-size: 2\n", Severity.IGNORED),
        ("ngram", "async-scheduling: true\n", Severity.REFUSED),
        ("ngram", "max-num-batched-tokens: 16\n", Severity.REFUSED),
    ],
)
def test_what_breaks_a_table_is_named(method: str, extra: str, severity: Severity, tmp_path: Path) -> None:
    inside = extra if extra.startswith("  ") else ""
    spec = (
        f"speculative-config:\n  method: {method}\n  num_speculative_tokens: 4\n{inside}"
        "  num_speculative_tokens_per_batch_size: [[1, 8, 4], [9, 32, 1]]\n"
    )
    config = config_of(tmp_path, HEAD + spec + ("" if inside else extra))
    assert said(config, severity)
    assert config.runs == (severity not in FATAL)


def test_ignored_tables_run_their_static_k(tmp_path: Path) -> None:
    spec = (
        "speculative-config:\n  method: ngram\n  num_speculative_tokens: 4\n"
        "  num_speculative_tokens_per_batch_size: [[1, 32, 1]]\n"
    )
    assert config_of(tmp_path, HEAD + "data-parallel-size: 2\n" + spec).policy == "fixed:4"
    assert config_of(tmp_path, HEAD + spec).policy == "fixed:1"


def test_a_false_with_underscores_is_dropped_by_vllm(tmp_path: Path) -> None:
    config = config_of(tmp_path, HEAD + "enable_prefix_caching: false\n")
    assert "prefix_caching" not in config.settings
    assert any("enable-prefix-caching" in text for text in said(config, Severity.IGNORED))
    assert config_of(tmp_path, HEAD + "enable-prefix-caching: false\n").settings["prefix_caching"] is False


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("enable-lora: true\n", "LoRA"),
        ("pipeline-parallel-size: 2\n", "pipeline"),
        ("speculative-config: {method: medusa, model: a/b, num_speculative_tokens: 3}\n", "medusa"),
    ],
)
def test_what_cannot_be_simulated_is_said(more: str, why: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, HEAD + more)
    assert config.runs
    assert why in config.unsimulated
    assert any("cannot be simulated" in text for text in said(config, Severity.NOTE))


def test_the_model_decides_on_mtp_and_context(tmp_path: Path) -> None:
    mtp = "speculative-config:\n  method: glm4_moe_mtp\n  num_speculative_tokens: 3\n"
    config = config_of(tmp_path, HEAD + "max-model-len: 9000\n" + mtp)
    assert config.proposer == "mtp"
    assert not against_model(config, FakeModel()).runs
    assert not against_model(config, FakeModel(mtp_layers=2)).runs
    assert against_model(config, FakeModel(mtp_layers=1)).runs
    short = against_model(config, FakeModel(mtp_layers=1, max_context=8192))
    assert any("above the model's 8192" in text for text in said(short, Severity.REFUSED))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- 1\n", "must be a mapping"),
        ("", "must be a mapping"),
        ("a: [1\n", "is not YAML"),
        ("port: 1\n", "does not tell its engine"),
        ("!!python/object/apply:os.system ['true']\n", "is not YAML"),
    ],
)
def test_a_file_that_is_no_config_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        source_of_file(file, None)


def test_sizes_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("model: " + "m" * 1_000_001)
    with pytest.raises(InputError, match="at most"):
        source_of_file(file, None)
    huge = HEAD.replace("32", "99999999999") + (
        "speculative-config: {method: ngram, num_speculative_tokens: 2,"
        " num_speculative_tokens_per_batch_size: [[1, 99999999999, 2]]}\n"
    )
    assert config_of(tmp_path, huge).policy == "fixed:2"


@given(plan=table_plans())
def test_what_is_exported_reads_back_the_same(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    table, seats = plan.answer.table, plan.question.max_num_seqs
    assert table is not None
    export = export_vllm(plan, MODEL, DRAFTERS["eagle3"])
    file = tmp_path_factory.mktemp("back") / "vllm.yaml"
    file.write_text(export.files["vllm.yaml"], encoding="utf-8")
    for source in (source_of_file(file, None), source_of_command(export.command_line, None)):
        config = source.read()
        assert config.engine == "vllm"
        assert config.runs, config.findings
        assert not said(config, Severity.CHANGED)
        assert not said(config, Severity.IGNORED)
        wanted = [planned_k(table, batch) for batch in range(1, seats + 1)]
        assert ks(config.policy, seats) == wanted
        asked = {
            "max_num_seqs": seats,
            "max_num_batched_tokens": plan.question.max_num_batched_tokens,
            "tp": plan.question.tp if plan.question.tp > 1 else None,
        }
        assert config.settings == {key: value for key, value in asked.items() if value is not None}
        if any(wanted):
            assert (config.proposer, config.drafter) == ("eagle3", DRAFTERS["eagle3"].hf_id)


@pytest.mark.parametrize(("proposer", "k", "dp"), [("ngram", 5, 1), ("draft-model", 3, 2), ("eagle", 1, 4)])
def test_a_fixed_k_reads_back_with_its_ranks(proposer: str, k: int, dp: int) -> None:
    plan = answered(f"fixed:{k}", k=k, proposer=proposer, dp=dp, async_scheduling=False, enforce_eager=True)
    export = export_vllm(plan, MODEL, DRAFTERS[proposer])
    config = source_of_command(export.command_line, None).read()
    assert (config.policy, config.proposer, config.settings.get("dp", 1)) == (f"fixed:{k}", proposer, dp)
    assert config.settings["async_scheduling"] is False
    assert config.settings["enforce_eager"] is True
    assert (
        yaml.safe_load(export.speculative_json or "")
        == yaml.safe_load(export.files["vllm.yaml"])["speculative-config"]
    )


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [("fp8", "fp8"), ("AWQ_Marlin", "int4"), ("gptq", "int4"), ("bitsandbytes", None)],
)
def test_the_format_that_a_quantization_stands_for(
    quantization: str, dtype: str | None, tmp_path: Path
) -> None:
    config = config_of(tmp_path, HEAD + f"quantization: {quantization}\n")
    assert config.settings.get("quantization") == dtype
    noted = [text for text in said(config, Severity.NOTE) if "is not simulated" in text]
    assert noted == (
        [] if dtype else [f"quantization {quantization} is not simulated: the model's own weights are"]
    )


@pytest.mark.parametrize(("method", "policy"), [("mtp", "fixed:1"), ("deepseek_mtp", "fixed:1")])
def test_mtp_without_a_k_leaves_one_to_the_checkpoint(method: str, policy: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, HEAD + f"speculative-config:\n  method: {method}\n")
    assert config.policy == policy
    assert any("1 is assumed" in text for text in said(config, Severity.NOTE))
