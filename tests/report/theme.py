"""What a reader of a light or a dark screen sees of a page: contrasts of its texts, grounds of its charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.dashboard.browser import Tab

# A text on the cells of a heat map is left out: its ground is a picture, and its colour chosen by the cell's.
# Contrast is WCAG 2.2's: (lighter + 0.05) / (darker + 0.05) of relative luminance.
_LOOK = r"""
(() => {
  const parse = (text) => {
    const parts = (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
    return text === "transparent" ? [0, 0, 0, 0] : [parts[0], parts[1], parts[2], parts[3] ?? 1];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * under[i]);
  const luminance = (rgb) => {
    const linear = (one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
    const part = rgb.map((one) => linear(one / 255));
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const ground = (one) => {
    const layers = [];
    for (let at = one; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const faint = [], white = [];
  let texts = 0, inCharts = 0, least = 21;
  for (const one of document.querySelectorAll("body *")) {
    if (one.closest("script, style, noscript, .textpoint, .heatmaplayer")) continue;
    const own = [...one.childNodes].map((node) => node.nodeType === 3 ? node.textContent : "").join("");
    const box = one.getBoundingClientRect();
    if (own.trim() === "" || box.width === 0 || box.height === 0) continue;
    const style = getComputedStyle(one), drawn = one instanceof SVGElement;
    const ink = parse(drawn ? style.fill : style.color);
    ink[3] *= Number(style.opacity) * (drawn ? Number(style.fillOpacity) : 1);
    const under = ground(one);
    const [a, b] = [luminance(over(ink, under)), luminance(under)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    texts += 1;
    inCharts += drawn;
    least = Math.min(least, ratio);
    if (ratio < 4.5) faint.push(`${own.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  for (const one of document.querySelectorAll(".main-svg, .main-svg rect.bg")) {
    const style = getComputedStyle(one);
    const fill = one instanceof SVGRectElement ? parse(style.fill) : parse(style.backgroundColor);
    if (one instanceof SVGRectElement) fill[3] *= Number(style.fillOpacity) * Number(style.opacity);
    if (luminance(over(fill, ground(one.parentElement))) > 0.5) white.push(one.getAttribute("class"));
  }
  return {
    texts, inCharts, least, faint, white, paper: luminance(ground(document.body)),
    scroll: document.documentElement.scrollWidth,
    fetched: performance.getEntriesByType("resource").map((one) => one.name)
      .filter((one) => !one.startsWith("data:")),
  };
})()
"""


DRAWN = "document.documentElement?.dataset.drawn === 'true'"


def look(tab: Tab, page: Path, width: int, scheme: str, ready: str = DRAWN) -> dict[str, Any]:
    """How the page looks at ``width`` pixels under ``prefers-color-scheme: scheme``.

    Args:
        ready: JavaScript that is true once the page is whole.

    Returns:
        as :func:`seen`, and failed: what the console said.
    """
    told = len(tab.failed)
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    tab.open("about:blank", width, 900)
    tab.open(page.as_uri(), width, 900)
    tab.wait(ready)
    return {**seen(tab), "failed": tab.failed[told:]}


def seen(tab: Tab) -> dict[str, Any]:
    """How the page that is open looks.

    Returns:
        texts, inCharts: how many were read, and how many of them in charts; least: the lowest contrast of a
        text with what it stands on; faint: texts whose contrast is below 4.5; white: grounds of charts that
        are lighter than dark; paper: relative luminance of the page's ground; scroll: pixels; fetched: what
        was asked of the network.
    """
    return dict(tab.js(_LOOK))
