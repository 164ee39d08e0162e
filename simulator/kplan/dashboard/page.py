"""What the page is made of: the controls, and an answer as components."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from kplan.config.plan import Plan, PolicyResult, Stat
from kplan.dashboard.controls import controls
from kplan.dashboard.quick import Look
from kplan.dashboard.state import OWN, Files, State
from kplan.dashboard.wording import on_page
from kplan.report.text import DASH, answer_k, number

PLAN_FILE = "plan.json"
BUSY, BUSY_AGAIN = "Simulating", "; what stands below answers the question before"
"""Said while an answer is under way; the second part where an answer stands."""
_QUIET_GRAPH: Any = {"displayModeBar": False}
_POLITE: dict[str, Any] = {"aria-live": "polite"}
_CHART_PX = 420


def layout(files: Files = OWN) -> Component:
    """The whole page, at the default state.

    Args:
        files: what the dashboard was started with.
    """
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="ask"),
            dcc.Store(id="done"),
            dcc.Store(id="shown"),
            dcc.Store(id="defaults", data=State().model_dump()),
            dcc.Interval(id="tick", interval=1000, disabled=True),
            html.Header([html.H1("What K at this load?", id="heading"), *_started_with(files)]),
            html.Main([_answer(), controls(), _evidence()], className="columns"),
        ]
    )


def _started_with(files: Files) -> list[Component]:
    """Which files stand for what the page would choose."""
    told = []
    if files.traces is not None:
        told.append(
            f"Acceptance and output lengths are those recorded in {files.traces.name}, for any workload."
        )
    if files.drafter is not None:
        told.append(f"The drafter is {Path(files.drafter).name}.")
    return [html.P(" ".join(told), className="quiet", id="started-with")] if told else []


def _answer() -> Component:
    return html.Section(
        [
            html.P(id="notice", className="tag bad", role="alert", hidden=True),
            html.P([BUSY, html.Span(BUSY_AGAIN), "."], id="busy", className="tag", role="status"),
            html.Div(id="answer", **_POLITE),
            html.Div(
                [
                    html.Button("Run the full recommend", id="full", n_clicks=0),
                    html.Button("Cancel", id="cancel", n_clicks=0, hidden=True),
                    html.Span(id="progress", className="quiet", role="status"),
                ],
                className="actions",
            ),
        ],
        className="top",
    )


def _evidence() -> Component:
    charts = [
        ("tpot", "Time per output token by policy", "Lower is better; the diamond is what to run."),
        (
            "map",
            "Best K by batch and context",
            "By steady step cost and acceptance. Blank: no room in the cache.",
        ),
    ]
    return html.Div(
        [
            html.Div(id="files", className="actions"),
            html.Div([_chart(*chart) for chart in charts], className="charts"),
            html.H2("Policies compared"),
            html.P("Small figures: 95% interval of the mean.", className="quiet"),
            html.Div(id="policies"),
            html.Details([html.Summary("What this rests on"), html.Div(id="rests-on")]),
        ],
        id="evidence",
        hidden=True,
    )


def _chart(name: str, heading: str, note: str) -> Component:
    graph = dcc.Graph(
        id=name, config=_QUIET_GRAPH, figure={"data": [], "layout": {}}, responsive=True,
        style={"height": f"{_CHART_PX}px"},
    )  # fmt: skip
    return html.Section([html.H2(heading), html.P(note, className="quiet"), graph])


def answer(look: Look) -> list[Component]:
    """The answer in words, what it means in numbers, and why."""
    plan = look.plan
    good = plan.answer.feasible and not plan.answer.saturated
    why = [html.Li(on_page(line)) for line in plan.answer.why if line != look.how]
    return [
        html.Section(
            [
                html.P(html.Strong(on_page(plan.answer.words), id="words")),
                html.P(look.how, id="how", className="quiet"),
                html.Details([html.Summary("Why"), html.Ul(why)]),
            ],
            className="answer" if good else "answer bad",
        ),
        html.Div([_tile(name, value) for name, value in _tiles(plan)], className="tiles"),
    ]


def refusal(text: str) -> list[Component]:
    """Why there is no answer."""
    return [html.Section(html.P(html.Strong(on_page(text), id="words")), className="answer bad")]


def _tile(name: str, value: str) -> Component:
    return html.Div([html.B(value), html.Span(name)], className="tile")


def _tiles(plan: Plan) -> list[tuple[str, str]]:
    asked, found = plan.question, plan.answer
    mine = next(one for one in plan.policies if one.name == found.policy)
    gpus = asked.tp * asked.dp
    return [
        ("what to run", answer_k(found)),
        (_span("TPOT", _ends_of(mine.tpot_ms)), f"{_mean(mine.tpot_ms)} ms"),
        (_span("TTFT", _ends_of(mine.ttft_ms)), f"{_mean(mine.ttft_ms)} ms"),
        (_span("output tokens/s", mine.output_tok_s_ci95), number(mine.output_tok_s)),
        (_span("goodput, requests/s", mine.goodput_ci95), number(mine.goodput_qps)),
        ("replicas" if gpus == 1 else f"replicas of {gpus} GPUs", str(found.replicas)),
        (
            _span("speedup over none", mine.speedup_ci95),
            DASH if mine.speedup_vs_off is None else f"{number(mine.speedup_vs_off)}×",
        ),
        ("sustained, requests/s", number(found.max_qps)),
    ]


def _span(name: str, ends: tuple[float, float] | None) -> str:
    return name if ends is None else f"{name}, 95% {number(ends[0])} to {number(ends[1])}"


def _mean(value: Stat | None) -> str:
    return DASH if value is None else number(value.mean)


def policies(plan: Plan) -> Component:
    """One row a policy, the recommended one marked."""
    head = ("policy", "TPOT, ms", "p99 TPOT, ms", "TTFT, ms", "p99 TTFT, ms", "output tok/s",
            "goodput, req/s", "speedup over off", "largest load, req/s", "mean batch")  # fmt: skip
    rows = [
        html.Tr(
            [html.Td(cell) for cell in _cells(one)],
            className="recommended" if one.name == plan.answer.policy else "",
        )
        for one in plan.policies
    ]
    return _table(head, rows)


def _cells(one: PolicyResult) -> list[Any]:
    name: list[Any] = [html.Code(one.name)]
    if one.saturated:
        name.append(html.Span(" saturated", className="tag bad"))
    if not one.exportable:
        name.append(html.Span(" not exportable", className="tag", title=on_page(one.why_not)))
    return [
        name,
        *_stat(one.tpot_ms),
        *_stat(one.ttft_ms),
        _interval(one.output_tok_s, one.output_tok_s_ci95),
        _interval(one.goodput_qps, one.goodput_ci95),
        _interval(one.speedup_vs_off, one.speedup_ci95),
        number(one.max_qps),
        number(one.mean_batch),
    ]


def _stat(value: Stat | None) -> list[Any]:
    """Mean and p99."""
    return [DASH, DASH] if value is None else [_interval(value.mean, value.ci95), number(value.p99)]


def _ends_of(value: Stat | None) -> tuple[float, float] | None:
    return None if value is None else value.ci95


def _interval(value: float | None, ends: tuple[float, float] | None) -> list[Any]:
    shown: list[Any] = [number(value)]
    return shown if ends is None else [*shown, html.Small(f"{number(ends[0])} to {number(ends[1])}")]


def rests_on(plan: Plan) -> Component:
    """Every figure behind the answer, and how it is known."""
    rows = [
        html.Tr([html.Td(one.name), html.Td(one.value), html.Td(one.kind), html.Td(one.source)])
        for one in plan.assumptions
    ]
    return _table(("figure", "value", "how known", "source"), rows)


def _table(head: Sequence[str], rows: Sequence[Component]) -> Component:
    heads = html.Thead(html.Tr([html.Th(cell, scope="col") for cell in head]))
    return html.Div(html.Table([heads, html.Tbody(rows)]), className="scroll", tabIndex=0)


def files(look: Look, query: str) -> list[Component]:
    """Links to what can be downloaded, and why an engine has no file."""
    links = [
        html.A(name, href=f"/download/{name}?{query}", download=name, className="button")
        for name in (PLAN_FILE, *look.exports.files)
    ]
    refused = [
        html.P(f"{engine}: no config: {on_page(why)}", className="quiet")
        for engine, why in look.exports.refused.items()
    ]
    return [*links, *refused]
