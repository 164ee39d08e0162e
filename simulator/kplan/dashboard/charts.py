"""The charts of the page; the report's where it has one. Colours of text and grid are the style sheet's."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from kplan.config.evidence import KMap
from kplan.config.plan import Plan
from kplan.report import figures
from kplan.report.marks import VERMILLION
from kplan.report.text import number

_CIVIDIS = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")
"""From dark to light; made for colour-blind readers."""


def tpot(plan: Plan) -> go.Figure:
    """TPOT by policy with intervals; empty when there is nothing to draw."""
    return _bare(figures.tpot(plan) or go.Figure())


def k_map(found: KMap, at: tuple[float, float]) -> go.Figure:
    """The best K by batch and context, with the load's place; what the KV cache does not hold is left out.

    Args:
        at: batch and context of the load.
    """
    batches = [str(batch) for batch in found.batches]
    contexts = [_tokens(context) for context in found.contexts]
    text = [["" if k is None else str(k) for k in row] for row in found.best_k]
    most = max((k for row in found.best_k for k in row if k is not None), default=0) or 1
    figure = go.Figure()
    figure.add_heatmap(
        x=batches,
        y=contexts,
        z=[list(row) for row in found.best_k],
        text=text,
        texttemplate="%{text}",
        zmin=0,
        zmax=most,
        colorscale=list(_CIVIDIS),
        showscale=False,
        xgap=1,
        ygap=1,
        hovertemplate="batch %{x}, context %{y} tokens: K = %{z}<extra></extra>",
    )
    figure.add_scatter(
        x=[batches[_nearest(found.batches, at[0])]],
        y=[contexts[_nearest(found.contexts, at[1])]],
        mode="markers",
        name=f"this load: batch {number(at[0])}, context {number(at[1])} tokens",
        marker={"symbol": "square-open", "size": 17, "color": VERMILLION, "line": {"width": 3.5}},
        hoverinfo="name",
    )
    title = {"text": "batch (requests that decode)", "standoff": 10}
    figure.update_xaxes(title=title, type="category", showgrid=False, automargin=True)
    figure.update_yaxes(title_text="context (tokens)", type="category", showgrid=False)
    top = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom"}
    figure.update_layout(showlegend=True, legend=top, margin={"l": 62, "r": 12, "t": 44, "b": 52})
    return _bare(figure)


def _nearest(values: tuple[int, ...], at: float) -> int:
    return int(np.argmin(np.abs(np.log(values) - np.log(max(at, 1.0)))))


def _tokens(context: int) -> str:
    return f"{context // 1024}k" if context >= 1024 else str(context)


def _bare(figure: go.Figure) -> go.Figure:
    """On the page's own ground, without plotly's template."""
    clear = "rgba(0,0,0,0)"
    figure.update_layout(template=None, paper_bgcolor=clear, plot_bgcolor=clear, autosize=True, height=None)
    figure.update_layout(font={"family": "system-ui, DejaVu Sans, sans-serif", "size": 12})
    return figure
