"""Ask a real engine: its own parser, config objects and start-up checks, run in its own environment.

Nothing is served and no weights are read. kplan starts the interpreter that has the engine on a script of
``check_scripts``, which imports the engine's code; kplan itself never does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kplan.errors import InputError
from kplan.export.engines import ENGINES
from kplan.export.interpreter import ask_python, ask_python_json

SCRIPTS = Path(__file__).parent / "check_scripts"
START_S, CASE_S = 300.0, 10.0
"""Seconds that an engine's imports and one case may take."""


@dataclass(frozen=True)
class Case:
    """Arguments of a server start, and the folder that it is started in."""

    name: str
    argv: tuple[str, ...]
    folder: Path

    @classmethod
    def of(cls, file: Path) -> Case:
        """A config file, read in its own folder."""
        return cls(str(file), ("--config", file.name), file.parent)


@dataclass(frozen=True)
class Verdict:
    """What the engine's own code said of one case.

    Attributes:
        name: the case's.
        engine, version: who said it.
        stage: ``ok``, or where it was refused: ``parser``, ``config`` or ``start``.
        error: one line, "" when it is accepted.
        stood_in: models that a stand-in's config.json was read for, because they are not at hand.
        runs: what the engine made of it, by the engine's names; empty when refused.
    """

    name: str
    engine: str
    version: str
    stage: str
    error: str
    stood_in: tuple[str, ...]
    runs: Mapping[str, Any]

    @property
    def accepted(self) -> bool:
        """Whether a server of this engine would come up."""
        return self.stage == "ok"

    @property
    def line(self) -> str:
        """The verdict for a person."""
        who = f"{ENGINES[self.engine].title} {self.version or '(version unknown)'}"
        if not self.accepted:
            return f"{who} refuses {self.name} ({self.stage}): {self.error}"
        stood_in = ", ".join(self.stood_in)
        return f"{who} accepts {self.name}" + (
            f" (a stand-in's config.json was read for {stood_in})" if stood_in else ""
        )

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "engine": self.engine,
            "version": self.version,
            "stage": self.stage,
            "error": self.error,
            "stood_in": list(self.stood_in),
        }


def engines_of(python: Path, option: str = "--check") -> dict[str, str]:
    """Engine -> release, of the engines that this interpreter has.

    Args:
        option: that named it.

    Raises:
        InputError: it cannot be run, or is no Python.
    """
    told = ask_python_json(option, python, [str(SCRIPTS / "which_engines.py")])
    return {name: str(version) for name, version in told.items() if name in ENGINES}


def check(
    cases: Sequence[Case],
    python: Path,
    engine: str | None = None,
    models: Mapping[str, Mapping[str, Any] | Path] | None = None,
) -> list[Verdict]:
    """The verdict of a real engine on each case.

    Args:
        cases: what to start; all of one engine.
        python: interpreter of the engine's environment.
        engine: ``vllm`` or ``sglang``; None takes the one that the interpreter has.
        models: model name -> content of a config.json, or a folder with one, where the engine cannot find the
            model itself (see kplan.export.standin).

    Raises:
        InputError: no such interpreter, no such engine in it, or one whose code is not where it was in the
            release that kplan knows.
    """
    engine, version = choose_engine(engines_of(python), python, engine)
    with tempfile.TemporaryDirectory(prefix="kplan-check-") as scratch:
        asked = {
            "cases": [{"argv": one.argv, "folder": str(one.folder.resolve())} for one in cases],
            "stand_ins": _folders(models or {}, Path(scratch)),
        }
        said = ask_python(
            "--check", python, [str(SCRIPTS / f"check_{engine}.py")],
            given=json.dumps(asked), limit_s=START_S + CASE_S * len(cases),
        )  # fmt: skip
    answers = _answers(said)
    if len(answers) != len(cases):
        raise InputError(
            "--check", str(python), f"{engine} answered {len(answers)} of {len(cases)} cases", "run it again"
        )
    return [_verdict(case, engine, version, answer) for case, answer in zip(cases, answers, strict=True)]


def choose_engine(found: Mapping[str, str], python: Path, engine: str | None) -> tuple[str, str]:
    """(engine, release) to ask; of several the one asked for.

    Raises:
        InputError: there is none, or not the one asked for, or several and none asked for.
    """
    if engine is None and len(found) > 1:
        names = " and ".join(sorted(found))
        raise InputError("--check", str(python), f"has {names}", f"say which: --check-engine {min(found)}")
    name = engine or next(iter(found), None)
    if name is None or name not in found:
        has = f"has {', '.join(found)}" if found else "has neither vllm nor sglang"
        raise InputError(
            "--check",
            str(python),
            has if engine is None else f"{has}, not {engine}",
            "give the python of the engine's own environment",
        )
    return name, found[name]


def version_warning(verdict: Verdict) -> str:
    """What to say where the engine is of another release than the exporter knows; "" where it is not."""
    known = ENGINES[verdict.engine]
    if verdict.version.partition("+")[0] == known.version:
        return ""
    return (
        f"WARNING: this environment has {known.title} {verdict.version or '(version unknown)'}; kplan's "
        f"rules were read from {known}, and the other release may run the same file otherwise"
    )


def _answers(said: str) -> list[dict[str, Any]]:
    """The answers among what an engine prints."""
    found = []
    for line in said.splitlines():
        with suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return [one for one in found if isinstance(one, dict) and one.keys() >= {"stage", "error"}]


def _verdict(case: Case, engine: str, version: str, answer: dict[str, Any]) -> Verdict:
    stage, error = str(answer.pop("stage")), str(answer.pop("error"))
    stood_in = tuple(answer.pop("stood_in", ()))
    return Verdict(case.name, engine, version, stage, error, stood_in, answer)


def _folders(models: Mapping[str, Mapping[str, Any] | Path], scratch: Path) -> dict[str, str]:
    """Model name -> folder with its config.json, written where only its content is given."""
    folders = {}
    for number, (name, model) in enumerate(models.items()):
        if isinstance(model, Path):
            folders[name] = str(model.resolve())
            continue
        folder = scratch / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(model), encoding="utf-8")
        folders[name] = str(folder)
    return folders
