"""What the real engines say of config files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kplan.export.check import Case, check
from tests.live.install import Engine

IN_ENGINE = Path(__file__).parent / "in_engine"


def judge(engine: Engine, files: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Case name -> verdict of the engine's own code on its file, in one process."""
    return judge_cases(engine, [Case(name, Case.of(file).argv, file.parent) for name, file in files.items()])


def judge_cases(engine: Engine, cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """Case name -> stage, error, and what the engine made of it."""
    return {
        verdict.name: {"stage": verdict.stage, "error": verdict.error, **verdict.runs}
        for verdict in check(cases, engine.python, engine.name)
    }
