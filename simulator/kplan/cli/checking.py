"""Asking a real engine, as ``--check PYTHON`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from kplan.export import Case, Verdict
    from kplan.profiles import Drafter, Model

Check: TypeAlias = Annotated[
    Path | None,
    typer.Option("--check", help="python of an engine's environment: ask its own parser and config code"),
]
CheckEngine: TypeAlias = Annotated[
    str | None,
    typer.Option("--check-engine", help="vllm or sglang, where that environment has both [the one it has]"),
]
ModelDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--model-dir", help="folder with the model's config.json, for --check where its name is not at hand"
    ),
]


def models_at_hand(
    name: str, model: Model | None, drafter: Drafter | None, model_dir: Path | None
) -> dict[str, Mapping[str, Any] | Path]:
    """Model name -> what an engine reads where it cannot find the model: a folder, or a stand-in.

    Raises:
        InputError: the folder has no config.json.
    """
    from kplan.errors import InputError
    from kplan.export.standin import stand_ins

    models: dict[str, Mapping[str, Any] | Path] = {}
    if model is not None:
        models |= stand_ins(model, drafter)
    if model_dir is not None:
        if not (model_dir / "config.json").is_file():
            raise InputError("--model-dir", str(model_dir), "has no config.json", "give the model's folder")
        models[name] = model_dir
    return models


def ask(
    cases: Sequence[Case],
    python: Path,
    engine: str | None,
    models: Mapping[str, Mapping[str, Any] | Path],
) -> list[Verdict]:
    """The verdicts; another release than kplan knows is told on stderr, in capitals. Raises InputError."""
    from kplan.cli.output import prose
    from kplan.export import check, version_warning

    verdicts = check(cases, python, engine, models)
    for warning in sorted({version_warning(one) for one in verdicts} - {""}):
        prose(warning, err=True, style="bold")
    return verdicts
