"""An HTML file that opens with the network off: styles, plotly and the figures are inside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

# Nothing is fetched, by the page's own rule: it shows the same with the network off.
_RULES = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True)
class Chart:
    """A chart's element id, heading, what it shows in words, its figure (None: nothing to draw), and what can
    be read off it, a line of HTML each."""

    name: str
    heading: str
    note: str
    figure: go.Figure | None
    found: tuple[str, ...] = ()

    def section(self) -> str:
        """The place in the page where it is drawn."""
        heading = escape(self.heading)
        found = "".join(f"<li>{line}</li>" for line in self.found)
        return (
            f'<section><h2>{heading}</h2><p class="quiet">{escape(self.note)}</p>'
            f"{f'<ul>{found}</ul>' if found else ''}"
            f'<div id="{self.name}" role="img" aria-label="{heading}"></div></section>\n'
        )


def document(title: str, body: str, charts: Sequence[Chart]) -> str:
    """The whole file (about 5 MB: plotly.js is inside).

    Args:
        title: plain text.
        body: HTML, with a place for each of ``charts``; what came from outside is escaped in it.
    """
    drawn = {chart.name: _bare(chart.figure) for chart in charts if chart.figure is not None}
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_RULES}">
<title>kplan: {escape(title)}</title>
<style>{stylesheet()}</style>
</head>
<body>
{body}
<script>{get_plotlyjs()}</script>
<script id="figures" type="application/json">{_script_json(drawn)}</script>
<script>{_asset("charts.js")}</script>
</body>
</html>
"""


def stylesheet() -> str:
    """The styles of every page: light and dark by the reader's choice."""
    return _asset("style.css")


def _bare(figure: go.Figure) -> dict[str, object]:
    """The figure without plotly's template: the page brings its own, light or dark."""
    content = figure.to_plotly_json()
    content["layout"].pop("template", None)
    return {"data": content["data"], "layout": content["layout"]}


def _asset(name: str) -> str:
    return files("kplan.report").joinpath("assets", name).read_text(encoding="utf-8")


def _script_json(content: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, default=list, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
