"""``kplan dashboard``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kplan.cli import options as o
from kplan.errors import InputError

TOKEN_ENV = "KPLAN_DASHBOARD_TOKEN"  # noqa: S105 (a name)


def dashboard(
    host: Annotated[
        str, typer.Option("--host", help="address to listen on; another than loopback needs a token")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="port to listen on; 0: any that is free")
    ] = 8050,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar=TOKEN_ENV,
            show_envvar=True,
            help="what whoever asks must know; as a flag, others of this machine see it (ps)",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="a file with the token, that only you may read")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="open the page, where a person runs the command")
    ] = True,
    traces: o.Traces = None,
    drafter: o.Drafter = None,
    json: o.Json = False,
) -> int:
    """Serve a local web page for "what K at this load?", until Ctrl-C.

    Its answers are quick looks of the simulator; a button runs the whole recommend. Files are named here
    alone: the page chooses among profiles that ship.
    """
    from kplan.cli.progress import progress
    from kplan.config.shipped import trace_path
    from kplan.dashboard.guard import Guard
    from kplan.dashboard.server import bound_socket

    token = _token(token, token_file)
    guard = Guard(host, token)
    with bound_socket(host, port) as bound:
        guard = replace(guard, address=bound.getsockname()[0])
        from kplan.dashboard.app import Answers, make_app
        from kplan.dashboard.base import first_state
        from kplan.dashboard.server import BoundedServer
        from kplan.dashboard.state import Files

        files = Files(None if traces is None else trace_path(traces), drafter)
        answers = Answers.of_simulator(files)
        try:
            with progress() as tell:
                tell("compiling the simulator, and answering the first question")
                first = first_state(files)
                answers.look(first)
            number = bound.getsockname()[1]
            server = BoundedServer(make_app(answers, guard, f"kplan_{number}", files), bound, answers.close)
            url = f"http://{f'[{host}]' if ':' in host else host}:{number}/"
            if query := first.query():
                url += f"?{query}"
            _announce(url, token is not None, browser, json)
            server.serve()
        finally:
            answers.close()
    return 0


def _token(token: str | None, file: Path | None) -> str | None:
    """The token, from where it is; a flag is told on, as others see it."""
    from kplan.cli.output import prose
    from kplan.dashboard.entry import read_token

    shown = token is not None and token != os.environ.get(TOKEN_ENV)
    if file is not None:
        if shown:
            raise InputError("--token-file", str(file), "is given with --token", "leave one out")
        return read_token(file)
    if shown:
        prose(
            f"note: others of this machine see --token (ps); {TOKEN_ENV} or --token-file they do not",
            err=True,
        )
    return token


def _announce(url: str, guarded: bool, browser: bool, json: bool) -> None:
    """Say where the page is, and open it where a person looks on; a token is not said back."""
    from kplan.cli.output import print_json

    if json:
        print_json({"url": url})
        sys.stdout.flush()
        return
    first = "; it asks for the token" if guarded else ""
    print(f"kplan dashboard at {url} (Ctrl-C ends it){first}", flush=True)
    if browser and not guarded and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(url)
