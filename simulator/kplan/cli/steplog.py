"""``kplan steplog``: the plugin that logs the steps of a vLLM server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli import options as o

if TYPE_CHECKING:
    from kplan.live.steplog import EngineSite

EnginePython = Annotated[
    Path, typer.Argument(metavar="ENGINE_PYTHON", help="python of the engine's environment")
]

app = typer.Typer(
    help="Log every step of a vLLM server, for kplan calibrate.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("install")
def install(engine_python: EnginePython, json: o.Json = False) -> int:
    """Put the plugin into an engine's environment, and say how to start the server with it."""
    from kplan.live import steplog

    engine = steplog.engine_site(engine_python)
    news = steplog.install(engine)
    return _tell(engine, json, "installed" if news else "is installed already", installed=True)


@app.command("uninstall")
def uninstall(engine_python: EnginePython, json: o.Json = False) -> int:
    """Take the plugin out of an engine's environment."""
    from kplan.live import steplog

    engine = steplog.engine_site(engine_python)
    gone = steplog.uninstall(engine)
    return _tell(engine, json, "removed" if gone else "was not installed", installed=False)


@app.command("status")
def status(engine_python: EnginePython, json: o.Json = False) -> int:
    """Whether an engine's environment has the plugin; exit code 1 when not."""
    from kplan.live import steplog

    engine = steplog.engine_site(engine_python)
    there = steplog.is_installed(engine)
    _tell(engine, json, "is installed" if there else "is not installed", installed=there)
    return 0 if there else 1


def _tell(engine: EngineSite, as_json: bool, what: str, *, installed: bool) -> int:
    from kplan.cli.output import print_json, say
    from kplan.live.steplog import ENGINE_FLAG

    if as_json:
        print_json({"site": str(engine.site), "vllm": engine.version, "installed": installed})
        return 0
    say(f"kplan-steplog {what}: vLLM {engine.version or '(no version told)'} in {engine.site}")
    if installed:
        say(f"start the server with  KPLAN_STEPLOG=steps.jsonl vllm serve ... {ENGINE_FLAG}")
        say("then run               kplan calibrate --url http://HOST:PORT --steplog steps.jsonl ...")
    return 0
