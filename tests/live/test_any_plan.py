"""Whatever plan is exported, both engines' own code takes the file and the command line, and runs its K."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kplan.config.plan import BatchRange, Plan
from kplan.errors import InputError
from kplan.export import EngineExport, export_sglang, export_vllm
from kplan.export.check import Case, check
from kplan.export.standin import stand_ins
from kplan.profiles import Drafter, Model, load_drafter, load_model
from tests.export.rules import padded, planned_k
from tests.export.sample import answered, tables
from tests.live.install import Engine
from tests.live.verdicts import judge_cases

PLANS = 100  # for each engine; each is judged as a file and as a command line
MODELS = {
    "llama-3.1-8b": ("ngram", "eagle", "eagle3", "draft-model", "pard"),
    "qwen3-8b": ("ngram", "eagle3", "draft-model"),
    "glm-4.5-air": ("ngram", "mtp"),
}


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, Model, Drafter]:
    """A plan that a user could ask for, with a table or one K; its engine may yet refuse it."""
    name = draw(st.sampled_from(sorted(MODELS)))
    proposer = draw(st.sampled_from(MODELS[name]))
    table: tuple[BatchRange, ...] | None = None
    if draw(st.booleans()):
        table = draw(tables())
    k = None if table else draw(st.integers(0, 7))
    plan = answered(
        "table:x" if table else f"fixed:{k}",
        k=k,
        table=table,
        model=name,
        proposer=proposer,
        tp=draw(st.sampled_from([1, 2, 4])),
        dp=draw(st.sampled_from([1, 1, 1, 2])),
        max_num_seqs=draw(st.integers(1, 1024)),
        max_num_batched_tokens=draw(st.sampled_from([1, 64, 1024, 2048, 16384])),
        max_model_len=draw(st.sampled_from([None, None, 64, 4096, 40960, 200_000])),
        async_scheduling=draw(st.sampled_from([None, True, False])),
        enforce_eager=draw(st.booleans()),
        prefix_caching=draw(st.booleans()),
        gpu_memory_utilization=draw(st.sampled_from([0.9, 0.5])),
        kv_cache_dtype=draw(st.sampled_from(["auto", "bf16", "fp8"])),
    )
    model = load_model(name)
    return plan, model, load_drafter(proposer, model)


def exported(
    export: Callable[[Plan, Model, Drafter], EngineExport],
) -> list[tuple[Plan, Model, Drafter, EngineExport]]:
    """PLANS plans that the exporter writes, always the same."""
    written: list[tuple[Plan, Model, Drafter, EngineExport]] = []

    @seed(7)
    @settings(
        max_examples=6 * PLANS,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=plans())
    def collect(drawn: tuple[Plan, Model, Drafter]) -> None:
        if len(written) == PLANS:
            return
        with suppress(InputError):  # refused before the engine would: tests/export has each rule
            written.append((*drawn, export(*drawn)))

    collect()
    assert len(written) == PLANS
    return written


def cases_of(number: int, export: EngineExport, folder: Path) -> list[Case]:
    """The file in a folder of its own, and the command line started there."""
    place = folder / str(number)
    place.mkdir()
    for name, text in export.files.items():
        (place / name).write_text(text, encoding="utf-8")
    words = shlex.split(export.command_line)
    starts_with = 2 if export.engine == "vllm" else 3  # vllm serve, python -m sglang.launch_server
    file = Case.of(place / f"{export.engine}.yaml")
    return [
        Case(f"{number} file", file.argv, place),
        Case(f"{number} command", tuple(words[starts_with:]), place),
    ]


def says(
    engine: Engine, written: list[tuple[Plan, Model, Drafter, EngineExport]], folder: Path
) -> dict[str, dict[str, Any]]:
    """The engine's word on all of them, in one process."""
    cases = [case for number, (*_, export) in enumerate(written) for case in cases_of(number, export, folder)]
    models = {
        key: value for _, model, drafter, _ in written for key, value in stand_ins(model, drafter).items()
    }
    return {
        one.name: {"stage": one.stage, "error": one.error, **one.runs}
        for one in check(cases, engine.python, engine.name, models)
    }


def k_of(plan: Plan, batch: int) -> int:
    """K that the plan means at a batch size."""
    return plan.answer.k if plan.answer.table is None else planned_k(plan.answer.table, batch)  # type: ignore[return-value]  # one of the two is given


def test_vllm_takes_and_runs_every_plan(vllm: Engine, tmp_path: Path) -> None:
    written = exported(export_vllm)
    verdicts = says(vllm, written, tmp_path)
    for number, (plan, _, _, export) in enumerate(written):
        seats = plan.question.max_num_seqs
        for how in ("file", "command"):
            verdict = verdicts[f"{number} {how}"]
            assert verdict["stage"] == "ok", (verdict["error"], export.command_line)
            assert verdict["max_num_seqs"] == seats
            assert verdict["max_num_batched_tokens"] == plan.question.max_num_batched_tokens
            assert verdict["prefix_caching"] == plan.question.prefix_caching
            by_batch = verdict["k_by_batch"] or [verdict["k"]] * (seats + 1)
            wanted = [k_of(plan, batch) for batch in range(1, seats + 1)]
            assert list(by_batch[1 : seats + 1]) == wanted, export.command_line


def test_sglang_takes_and_runs_every_plan(sglang: Engine, tmp_path: Path) -> None:
    written = exported(export_sglang)
    verdicts = says(sglang, written, tmp_path)
    for number, (plan, _, _, export) in enumerate(written):
        seats = plan.question.max_num_seqs
        for how in ("file", "command"):
            verdict = verdicts[f"{number} {how}"]
            assert verdict["stage"] == "ok", (verdict["error"], export.command_line)
            assert verdict["max_running_requests"] == seats
            if not verdict["speculative_adaptive"]:
                continue
            reach = min(seats, 256)
            wanted = [k_of(plan, min(padded(batch), seats)) for batch in range(1, reach + 1)]
            assert verdict["steps_by_batch"][:reach] == wanted, export.files["sglang_adaptive.json"]


def test_a_plan_of_another_model_needs_its_folder(vllm: Engine, tmp_path: Path) -> None:
    """Without a stand-in and without the network the engine cannot know a model."""
    (tmp_path / "vllm.yaml").write_text("model: nobody/has-this-model\n")
    verdict = judge_cases(vllm, [Case.of(tmp_path / "vllm.yaml")])[str(tmp_path / "vllm.yaml")]
    assert verdict["stage"] == "config"
