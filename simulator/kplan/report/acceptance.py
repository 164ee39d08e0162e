"""What a set of acceptance traces shows, as one HTML page that opens with the network off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from kplan.report.document import Chart, document
from kplan.report.marks import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION
from kplan.report.tables import html_table
from kplan.report.text import DASH, number

_COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, GREY)

Found = Mapping[str, Mapping[str, Any]]


def render_acceptance(
    title: str, source: str, found: Found, pairs: Sequence[Mapping[str, Any]], notes: Sequence[str]
) -> str:
    """The page.

    Args:
        title: name of the file described.
        source: where its traces come from.
        found: proposer -> what :func:`kplan.acceptance.describe.describe` says of it.
        pairs: what :func:`kplan.acceptance.describe.complementarity` says.
        notes: what the importer met.
    """
    charts = [chart for chart in _charts(found) if chart.figure is not None]
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    body = f"""<header><h1>Acceptance in {escape(title)}</h1><p class="quiet">{escape(source)}</p></header>
<main>
<h2>What was recorded</h2>
{_counts(found)}
{f"<h2>What the importer met</h2><ul>{listed}</ul>" if listed else ""}
<noscript><p>The charts need JavaScript; the tables hold the same figures.</p></noscript>
<div class="charts">
{"".join(chart.section() for chart in charts)}
</div>
<h2>Along the walk</h2>
<p class="quiet">Where steps of a fixed K would stand. Over positions: the same drafts, had a step stood at
every position; the two differ because long steps skip positions.</p>
{_walks(found)}
<h2>By draft</h2>
<p class="quiet">Conditional: accepted, given that the drafts before it were. Marginal: it and all before it
were, of the positions that verified it.</p>
{_drafts(found)}
{f"<h2>Two proposers at the same positions</h2>{_pairs(pairs)}" if pairs else ""}
</main>
<footer class="quiet">Counted from the recording; nothing is extrapolated beyond its K.</footer>"""
    return document(f"acceptance in {title}", body, charts)


def _charts(found: Found) -> list[Chart]:
    return [
        Chart(
            "chart-drafts",
            "Acceptance by draft",
            "Share of drafts accepted, given that those before them were.",
            _lines(
                found, "by_draft", lambda row: row["draft"], lambda row: row["conditional"],
                "draft", "conditional acceptance",
            ),
        ),
        Chart(
            "chart-positions",
            "Tokens per step by output position",
            "Mean over the known positions of each bin, at the K of the recording.",
            _lines(
                found, "by_position", lambda row: row["from"], lambda row: row["mean"],
                "output position (bins that double)", "tokens per step", log=True,
            ),
        ),
        Chart(
            "chart-walk",
            "Tokens per step along the walk",
            "At a fixed K, bonus token included.",
            _lines(
                found, "walk", lambda row: row["k"], lambda row: row["tokens_per_step"],
                "K", "tokens per step",
            ),
        ),
        Chart(
            "chart-spread",
            "How requests differ",
            "5%, 25%, 50%, 75% and 95% quantiles over requests of their own tokens per step.",
            _spread(found),
        ),
    ]  # fmt: skip


Value = Callable[[Mapping[str, Any]], float | None]


def _lines(
    found: Found, key: str, x: Value, y: Value, x_title: str, y_title: str, *, log: bool = False
) -> Any:
    figure = go.Figure()
    for i, (name, facts) in enumerate(found.items()):
        rows = facts[key]
        if rows:
            figure.add_scatter(
                x=[x(row) for row in rows],
                y=[y(row) for row in rows],
                mode="lines+markers",
                name=escape(name),
                line={"color": _COLOURS[i % len(_COLOURS)]},
            )
    if not figure.data:
        return None
    figure.update_layout(
        xaxis={"title": {"text": x_title}, **({"type": "log"} if log else {})},
        yaxis={"title": {"text": y_title}, "rangemode": "tozero"},
        height=420,
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
        legend={"orientation": "h", "y": -0.2},
    )
    return figure


def _spread(found: Found) -> Any:
    figure = go.Figure()
    for i, (name, facts) in enumerate(found.items()):
        spread = facts["spread"]
        if spread is not None and spread["requests"]:
            low, q1, median, q3, high = spread["quantiles"].values()
            figure.add_box(
                x=[f"{escape(name)}, K={spread['k']}"],  # given quartiles, a name alone puts all at 0
                lowerfence=[low],
                q1=[q1],
                median=[median],
                q3=[q3],
                upperfence=[high],
                marker={"color": _COLOURS[i % len(_COLOURS)]},
            )
    if not figure.data:
        return None
    figure.update_layout(
        yaxis={"title": {"text": "tokens per step"}},
        height=420,
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
        showlegend=False,
    )
    return figure


def _counts(found: Found) -> str:
    head = (
        "proposer", "requests", "positions", "known", "recorded K", "at the K (censored)", "without a match",
        "mean over positions", "mean over steps taken",
    )  # fmt: skip
    return html_table(
        head,
        [
            (
                "",
                [
                    f"<code>{escape(name)}</code>",
                    *(
                        _count(facts[key])
                        for key in (
                            "requests", "positions", "known_positions", "recorded_k", "censored_positions",
                            "unmatched_positions",
                        )
                    ),
                    number(facts["position_mean"]),
                    number(facts["step_mean"]),
                ],
            )
            for name, facts in found.items()
        ],
    )  # fmt: skip


_WALK = (
    ("tokens_per_step", "tokens/step"), ("position_tokens", "over positions"),
    ("drafted_per_step", "drafted/step"), ("first_accepted", "first draft kept"),
    ("oracle_drafted_per_step", "drafts of an oracle"), ("lag1", "lag-1 autocorrelation"),
    ("lag1_within", "within requests"), ("request_sd", "SD of requests"),
)  # fmt: skip


def _walks(found: Found) -> str:
    rows = [
        ("", [f"<code>{escape(name)}</code>", str(row["k"]), *(number(row[key]) for key, _ in _WALK)])
        for name, facts in found.items()
        for row in facts["walk"]
    ]
    return html_table(("proposer", "K", *(head for _, head in _WALK)), rows)


def _drafts(found: Found) -> str:
    rows = [
        (
            "",
            [
                f"<code>{escape(name)}</code>",
                str(row["draft"]),
                _count(row["reached"]),
                _count(row["accepted"]),
                number(row["conditional"]),
                number(row["marginal"]),
            ],
        )
        for name, facts in found.items()
        for row in facts["by_draft"]
    ]
    return html_table(("proposer", "draft", "reached", "accepted", "conditional", "marginal"), rows)


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> str:
    head = (
        "proposers", "positions", "first draft right: each", "both", "either", "either if independent",
        "correlation", "mean of each", "mean of the better",
    )  # fmt: skip
    rows = [
        (
            "",
            [
                " + ".join(f"<code>{escape(name)}</code>" for name in pair["proposers"]),
                _count(pair["positions"]),
                " / ".join(map(number, pair["first_accepted"])),
                *(
                    number(pair[key])
                    for key in ("both_accepted", "either_accepted", "independent_either", "correlation")
                ),
                " / ".join(map(number, pair["means"])),
                number(pair["better_mean"]),
            ],
        )
        for pair in pairs
    ]
    return html_table(head, rows)


def _count(value: int | None) -> str:
    return DASH if value is None else f"{value:,}"
