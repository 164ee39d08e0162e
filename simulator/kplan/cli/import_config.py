"""``kplan import-config``: what an engine does with a running config, and what it gives at a load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli import complete
from kplan.cli import options as o
from kplan.cli.checking import Check, CheckEngine, ModelDir
from kplan.cli.groups import LOAD, RUNS, SERVED, SLOS, Group, grouped, of

if TYPE_CHECKING:
    from kplan.cli.importing import Answer
    from kplan.config.scenario import Scenario
    from kplan.export import CurrentConfig, Source, Verdict
    from kplan.profiles import Model
    from kplan.telling import Tell

_READ = "tp dp quantization kv_cache_dtype proposer switch_us engine async_scheduling enforce_eager"
"""Options of other commands that the config says here."""

_SERVED = of(SERVED, SLOS, RUNS, without=_READ)


@grouped
def import_config(
    file: Annotated[Path | None, typer.Argument(help="the YAML that the engine is started with")] = None,
    command: Annotated[
        str | None, typer.Option("--command", help="the start as pasted: 'vllm serve MODEL --...'")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            autocompletion=complete.shipped("engines"),
            help="vllm, sglang, or auto: by the names of its options",
        ),
    ] = "auto",
    load: Group = LOAD,
    served: Group = _SERVED,
    recommend: Annotated[
        bool, typer.Option("--recommend", help="also what kplan recommend finds for this load")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="scenario YAML to write, for kplan simulate and search")
    ] = None,
    check: Check = None,
    check_engine: CheckEngine = None,
    model_dir: ModelDir = None,
    json: o.Json = False,
) -> int:
    """Read a running engine config, say what the engine does with it, and simulate it at a load.

    Without a load it only says what it finds. The model is found by its name, or by --model.

    Exit code 1 when the engine would refuse the config, crash on it or draft wrong tokens.
    """
    from tempfile import TemporaryDirectory

    from kplan.cli.importing import Answer, scenario_from, write_scenario
    from kplan.cli.paths import check_outputs
    from kplan.cli.progress import progress
    from kplan.errors import InputError

    source = _source(file, command, engine)
    flags = {**load, **served}
    at_load = any(load[name] is not None for name in o.LOADS)
    if not at_load and (recommend or out is not None):
        raise InputError("--out" if out else "--recommend", "no load", "a scenario has one", "give --qps")
    check_outputs(
        {"--out": out}, [one for one in (file, load["replay"], served["traces"]) if one is not None]
    )
    config, target = _with_model(source.read(), served["model"])
    answer = Answer(config)
    with progress() as tell:
        if check is not None:
            tell("asking the engine")
            answer.verdict = _ask(source, config, target, served["drafter"], check, check_engine, model_dir)
        if at_load and answer.runs:
            if target is None:
                raise InputError("model", config.model, "has no profile in kplan", "name it with --model")
            with TemporaryDirectory(prefix="kplan-import-") as scratch:
                scenario = scenario_from(config, flags, Path(scratch))
                _simulate(answer, scenario, recommend, tell)
                if out is not None:
                    answer.written = write_scenario(scenario, out)
    answer.show(json)
    return 0 if answer.runs else 1


def _source(file: Path | None, command: str | None, engine: str) -> Source:
    from kplan.errors import InputError
    from kplan.export import ENGINES, source_of_command, source_of_file

    if engine != "auto" and engine not in ENGINES:
        raise InputError("--engine", engine, f"must be {', '.join(ENGINES)} or auto")
    named = None if engine == "auto" else engine
    if (file is None) == (command is None):
        given = "both" if file is not None else "neither"
        raise InputError("FILE and --command", given, "exactly one is read", "leave one out, or give one")
    if file is not None:
        return source_of_file(file, named)
    assert command is not None
    return source_of_command(command, named)


def _with_model(config: CurrentConfig, named: str | None) -> tuple[CurrentConfig, Model | None]:
    """The config with what the engine finds once it knows the model; None where kplan does not know it."""
    from kplan.errors import InputError
    from kplan.export import against_model
    from kplan.profiles import load_model

    try:
        model = load_model(named or config.model)
    except InputError:
        if named is not None:
            raise
        return config, None
    return against_model(config, model), model


def _ask(
    source: Source,
    config: CurrentConfig,
    model: Model | None,
    named: str | None,
    python: Path,
    engine: str | None,
    model_dir: Path | None,
) -> Verdict:
    """The engine's own word. Raises InputError."""
    from contextlib import suppress

    from kplan.cli.checking import ask, models_at_hand
    from kplan.errors import InputError
    from kplan.profiles import load_drafter

    drafter = None
    if model is not None and config.proposer is not None:
        with suppress(InputError):  # then the engine must find its weights itself
            drafter = load_drafter(config.proposer.removesuffix("-tree"), model, named or config.drafter)
    models = models_at_hand(config.model, model, drafter, model_dir)
    if model is not None and config.model not in models:
        models[config.model] = models[model.hf_id]
    (verdict,) = ask([source.case], python, engine or source.engine, models)
    return verdict


def _simulate(answer: Answer, scenario: Scenario, recommend: bool, tell: Tell) -> None:
    from kplan.search.single import simulate_one

    answer.scenario, answer.run = scenario, simulate_one(scenario, tell)
    if recommend:
        from kplan.search import recommend as find

        answer.plan = find(scenario, tell)
