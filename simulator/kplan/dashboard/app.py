"""The page's wiring: a question goes in by its controls or its address, an answer comes out."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from dash import ClientsideFunction, Dash, Input, Output, ctx, no_update
from dash import State as Held
from dash.exceptions import DashException, PreventUpdate
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from kplan.dashboard import charts, page
from kplan.dashboard.called import UPDATE, is_question
from kplan.dashboard.desk import BusyError, Desk, SupersededError
from kplan.dashboard.guard import Guard, protect
from kplan.dashboard.job import FullRuns
from kplan.dashboard.quick import Look, Quick, full_look
from kplan.dashboard.server import GONE
from kplan.dashboard.state import CHOICES, KNOBS, OWN, Files, State
from kplan.dashboard.wording import on_page
from kplan.errors import InfeasibleError, InputError, KplanError
from kplan.export import plan_json
from kplan.report.document import stylesheet

PAGE_HEADER = "X-Kplan-Page"
"""Names the page that asks, so that its newest question takes the place of older ones."""
CONTROLS = (*(knob.name for knob in KNOBS), *CHOICES, "tp")
_LONGEST_FAULT = 200
_INDEX = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}<style>STYLES</style>{%css%}</head>
<body>{%app_entry%}{%config%}{%scripts%}{%renderer%}</body>
</html>"""


@dataclass(frozen=True)
class Answers:
    """Quick looks, and the full runs that take their place."""

    desk: Desk[State, Look]
    full: FullRuns

    @classmethod
    def of_simulator(cls, files: Files = OWN) -> Answers:
        """Those of the simulator, with ``files`` in place of profiles that ship."""
        return cls(Desk(Quick(files).look), FullRuns(partial(full_look, files=files)))

    def look(self, state: State, page: str | None = None, gone: Callable[[], bool] | None = None) -> Look:
        """The full run of ``state`` where there is one, else a quick look.

        Args:
            page, gone: who asks, and what tells whether they went away; see :meth:`Desk.ask`.

        Raises:
            BusyError: too many ask at once.
            SupersededError: the page asked something newer.
            InputError, InfeasibleError: there is no answer.
        """
        found = self.full.found(state)
        return found if isinstance(found, Look) else self.desk.ask(state, page, gone)

    def close(self) -> None:
        """End what is under way."""
        self.full.close()
        self.desk.close()


def make_app(answers: Answers, guard: Guard, cookie: str = "kplan", files: Files = OWN) -> Flask:
    """The WSGI application of the page.

    Args:
        cookie: name of the cookie of the token; cookies know no ports, so each server has its own.
        files: what the answers rest on, which the page says.
    """
    app = Dash(
        "kplan.dashboard",
        title="kplan: what K at this load?",
        update_title="",
        serve_locally=True,
        enable_mcp=False,
        suppress_callback_exceptions=False,
        add_log_handler=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.index_string = _INDEX.replace("STYLES", stylesheet())
    app.layout = page.layout(files)
    _wire(app, answers)
    server: Flask = app.server
    _add_downloads(server, answers)
    server.register_error_handler(BusyError, lambda error: _plain(str(error), 503))
    # 204: the page keeps what it has
    server.register_error_handler(SupersededError, lambda _: Response(status=204))
    server.register_error_handler(DashException, lambda _: _plain("the page has no such part", 404))
    server.register_error_handler(HTTPException, _refuse_http)
    server.register_error_handler(Exception, partial(_tell_fault, server))
    server.debug = False  # whatever FLASK_DEBUG says: a fault shows nobody our frames
    protect(server, guard, cookie, app.csp_hashes())
    server.before_request(lambda: _refuse_other_calls(app))
    return server


def _refuse_other_calls(app: Dash) -> Response | None:
    """Only what the page itself would call is called: the rest is no fault of ours."""
    if request.path != UPDATE or is_question(request, app.callback_map or {}):
        return None
    return _plain("this is no question of the page", 400)


def _refuse_http(error: HTTPException) -> Response | HTTPException:
    """A refusal of Flask's own as one line; a redirect as it is."""
    status = error.code or 500
    if status < 400:
        return error  # of which Flask makes the response
    return _plain((error.description or error.name), status)


def _tell_fault(server: Flask, error: Exception) -> Response:
    """A fault of ours: one line to whoever asked and one to the terminal, whatever was sent."""
    what = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_FAULT]
    at = traceback.extract_tb(error.__traceback__)[-1]
    server.logger.error("error: a question of the page failed at %s:%d (%s)", at.name, at.lineno, what)
    return _plain("the dashboard failed at this question; the terminal that runs it says where", 500)


def _wire(app: Dash, answers: Answers) -> None:
    for knob in KNOBS:
        app.clientside_callback(
            ClientsideFunction("kplan", "sync"),
            Output(f"{knob.name}-slider", "value"),
            Output(knob.name, "value", allow_duplicate=True),
            Input(f"{knob.name}-slider", "value"),
            Input(knob.name, "value"),
            Held(f"{knob.name}-ends", "data"),
            prevent_initial_call=True,
        )
    app.clientside_callback(
        ClientsideFunction("kplan", "collect"),
        Output("ask", "data"),
        *(Input(name, "value") for name in CONTROLS),
        Held("defaults", "data"),
    )

    @app.callback(
        *(Output(name, "value") for name in CONTROLS),
        Output("notice", "children"),
        Output("notice", "hidden"),
        Input("url", "search"),
    )
    def restore(search: object) -> tuple[Any, ...]:
        """The controls as the address says; a bad address leaves them at their defaults, and is named."""
        state, fault = State(), ""
        try:
            state = _asked("" if search is None else search)
        except InputError as error:
            fault = f"The address was not used: {error}"
        return (*(getattr(state, name) for name in CONTROLS), fault, not fault)

    @app.callback(
        Output("answer", "children"),
        Output("heading", "children"),
        Output("evidence", "hidden"),
        Output("files", "children"),
        Output("shown", "data"),
        Input("ask", "data"),
        Input("done", "data"),
        prevent_initial_call=True,
    )
    def answer(ask: object, _: object) -> tuple[Any, ...]:
        """The answer to the controls, or why there is none; what it rests on is drawn after it."""
        try:
            state = _asked(ask)
            look = answers.look(state, request.headers.get(PAGE_HEADER), _gone())
        except (InputError, InfeasibleError) as error:
            return page.refusal(str(error)), "What K at this load?", True, no_update, None
        query = state.query()
        shown = {"query": query, "full": look.full}
        return page.answer(look), f"What K at {state.load}?", False, page.files(look, query), shown

    @app.callback(
        Output("tpot", "figure"),
        Output("map", "figure"),
        Output("policies", "children"),
        Output("rests-on", "children"),
        Input("shown", "data"),
        prevent_initial_call=True,
    )
    def draw(shown: object) -> tuple[Any, ...]:
        """What the answer that is shown rests on."""
        query = shown.get("query") if isinstance(shown, dict) else None
        try:
            look = answers.look(_asked(query), gone=_gone())  # of no page: a newer question of it may wait
        except (InputError, InfeasibleError):  # the answer says why
            raise PreventUpdate from None
        plan = look.plan
        return charts.tpot(plan), charts.k_map(look.map, look.at), page.policies(plan), page.rests_on(plan)

    @app.callback(
        Output("progress", "children"),
        Output("tick", "disabled"),
        Output("done", "data"),
        Output("cancel", "hidden"),
        Input("full", "n_clicks"),
        Input("cancel", "n_clicks"),
        Input("tick", "n_intervals"),
        Input("ask", "data"),
        prevent_initial_call=True,
    )
    def run_full(_: int, __: int, ___: int, ask: object) -> tuple[Any, ...]:
        """Start a full run, or end it, and say how far it is."""
        try:
            state = _asked(ask)
            if ctx.triggered_id == "full":
                answers.full.start(state)
            if ctx.triggered_id == "cancel":
                answers.full.cancel()
        except KplanError as error:
            return on_page(str(error)), True, no_update, answers.full.running() is None
        return _progress(answers.full, state)


def _gone() -> Callable[[], bool] | None:
    """Tells whether whoever asks went away."""
    return cast("Callable[[], bool] | None", request.environ.get(GONE))


def _asked(ask: object) -> State:
    if not isinstance(ask, str):
        raise InputError("question", str(ask)[:40], "is no query string", "load the page anew")
    return State.from_query(ask)


def _progress(full: FullRuns, state: State) -> tuple[Any, ...]:
    """What is said of the full run of ``state``; whether nothing more will come; what is there now; whether
    nothing can be cancelled."""
    found = full.found(state)
    if found is not None:
        told = (
            f"no answer: {on_page(str(found))}"
            if isinstance(found, KplanError)
            else "this is the answer of the full run"
        )
        return told, True, state.query(), True
    running = full.running()
    if running is None:
        return "", True, no_update, True
    if running.state != state:
        return "the full run of another question is under way", False, no_update, False
    return f"{running.doing} ({running.for_s:.0f} s)", False, no_update, False


def _add_downloads(server: Flask, answers: Answers) -> None:
    texts: dict[str, Callable[[Look], str]] = {page.PLAN_FILE: lambda look: plan_json(look.plan)}

    @server.get("/download/<name>")
    def download(name: str) -> Response:
        """One file of an answer; a name is looked up among its files, and is never a path."""
        try:
            state = State.from_query(request.query_string.decode("ascii", "replace"))
            look = answers.look(state, gone=_gone())
        except InputError as error:
            return _plain(str(error), 400)
        except InfeasibleError as error:
            return _plain(str(error), 409)
        text = texts[name](look) if name in texts else look.exports.files.get(name)
        if text is None:
            have = ", ".join((*texts, *look.exports.files))
            return _plain(f"{name[:40]!r} is no file of this answer; it has {have}", 404)
        kind = "application/json" if name.endswith(".json") else "application/yaml"
        response = Response(text, mimetype=kind)
        response.headers["Content-Disposition"] = f"attachment; filename={name}"
        return response


def _plain(text: str, status: int) -> Response:
    response = Response(f"error: {text}\n", status, mimetype="text/plain")
    if status == 503:
        response.headers["Retry-After"] = "1"
    return response
