"""Ask a real engine: its own parser, config objects and start-up checks, run in its own environment.

Nothing is served and no weights are read. kplan starts the interpreter that has the engine on a script of
``check_scripts``, which imports the engine's code; kplan itself never does.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kplan.errors import InputError
from kplan.export.engines import ENGINES

SCRIPTS = Path(__file__).parent / "check_scripts"
ASK_S, START_S, CASE_S = 60.0, 300.0, 10.0
"""Seconds that an interpreter, an engine's imports and one case may take."""

_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


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


def engines_of(python: Path) -> dict[str, str]:
    """Engine -> release, of the engines that this interpreter has.

    Raises:
        InputError: it cannot be run, or is no Python.
    """
    said = _run(python, "which_engines.py", "", ASK_S)
    return {str(name): str(version) for name, version in json.loads(said.splitlines()[-1]).items()}


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
        said = _run(python, f"check_{engine}.py", json.dumps(asked), START_S + CASE_S * len(cases))
    answers = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
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


def _run(python: Path, script: str, asked: str, limit_s: float) -> str:
    """What ``script`` prints, run by ``python`` without kplan's own import path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | _QUIET
    try:
        done = subprocess.run(
            [str(python), str(SCRIPTS / script)],
            input=asked,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except OSError as error:
        raise InputError(
            "--check", str(python), f"cannot be run ({error.strerror})", "give an engine's python"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise InputError(
            "--check", str(python), f"did not answer in {limit_s:.0f} s", "try it on an idle machine"
        ) from error
    if done.returncode != 0:
        last = next(reversed(done.stderr.split("\n")[:-1] or [""]), "")[:300]
        raise InputError(
            "--check", str(python), f"{script} ended with {done.returncode}: {last}",
            f"it must be the python of an environment with {' or '.join(map(str, ENGINES.values()))}",
        )  # fmt: skip
    return done.stdout
