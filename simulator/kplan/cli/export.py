"""``kplan export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli import options as o
from kplan.cli.checking import Check, CheckEngine, ModelDir

if TYPE_CHECKING:
    from kplan.cli.files import Written
    from kplan.config.plan import Plan
    from kplan.export import Verdict


def export(
    plan: Annotated[Path, typer.Argument(help="plan.json written by kplan recommend --out")],
    out: Annotated[Path, typer.Option("--out", help="folder for the files")] = Path(),
    engine_version: Annotated[
        str | None,
        typer.Option("--engine-version", help="release of the plan's engine [the one that is known]"),
    ] = None,
    check: Check = None,
    check_engine: CheckEngine = None,
    model_dir: ModelDir = None,
    json: o.Json = False,
) -> int:
    """Write the engine configs and the report of a plan.

    With --check a real engine's own code judges its file: exit code 1 when it refuses.
    """
    from kplan.cli.files import read_plan, write_out
    from kplan.cli.output import print_json, say
    from kplan.cli.progress import progress
    from kplan.export import release_of

    asked = read_plan(plan)
    if engine_version is not None:
        release_of(asked.question.engine, engine_version)
    written = write_out(asked, out)
    verdict = None
    if check is not None:
        with progress() as tell:
            tell("asking the engine")
            verdict = _ask(asked, written, out, check, check_engine, model_dir)
    if json:
        print_json(written.record() | ({} if verdict is None else {"check": verdict.record()}))
    else:
        for line in written.lines() + ([] if verdict is None else [verdict.line]):
            say(line)
    return 0 if verdict is None or verdict.accepted else 1


def _ask(
    plan: Plan, written: Written, out: Path, python: Path, engine: str | None, model_dir: Path | None
) -> Verdict:
    """The word of the engine that ``python`` has on its file.

    Raises:
        InputError: there is no such engine, or the plan cannot be written for it.
    """
    from kplan.cli.checking import ask, models_at_hand
    from kplan.errors import InputError
    from kplan.export import Case, choose_engine, engines_of
    from kplan.profiles import load_drafter, load_model

    name, _ = choose_engine(engines_of(python), python, engine)
    if name not in written.exports.engines:
        why = written.exports.refused[name]
        raise InputError("--check", str(python), f"has {name}, for which nothing was written", why)
    model = load_model(plan.question.model)
    drafter = load_drafter(plan.question.proposer, model, plan.question.drafter)
    models = models_at_hand(model.hf_id, model, drafter, model_dir)
    (verdict,) = ask([Case.of(out / f"{name}.yaml")], python, name, models)
    return verdict
