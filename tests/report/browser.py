"""A page as Chromium lays it out, with the network off: what overlaps, is empty or too wide."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NO_BROWSER = "no Chromium on this machine: the page is not drawn"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--proxy-server=127.0.0.1:9",  # nothing listens there: the network is off
    "--virtual-time-budget=20000",
    "--window-size=1400,1000",
    "--dump-dom",
)

# The page lies in a frame, which may be narrower than any window of Chromium. Errors are caught before its
# own scripts run. Boxes are compared where they must not meet: the texts of one axis, of one legend, and the
# legend with what is drawn; by more than a pixel, which rounding explains.
_MEASURE = """
const frame = document.getElementById("frame");
frame.addEventListener("load", () => setTimeout(() => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const meets = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const clashes = [], cut = [], empty = [];
  for (const plot of page.querySelectorAll(".js-plotly-plot")) {
    const whole = plot.getBoundingClientRect();
    const boxes = (query) => [...plot.querySelectorAll(query)]
      .filter((one) => one.textContent.trim() !== "" && one.getBoundingClientRect().width > 0)
      .map((one) => [one.textContent, one.getBoundingClientRect()]);
    const groups = [".xtick text, .x2tick text", ".ytick text, .y2tick text", ".legendtext",
      ".xtitle, .x2title, .ytitle, .y2title, .xtick text, .x2tick text, .ytick text, .y2tick text"];
    for (const group of groups) {
      const found = boxes(group);
      found.forEach(([one, a], i) => found.slice(i + 1).forEach(([two, b]) => {
        if (meets(a, b)) clashes.push(`${plot.id}: ${one} / ${two}`);
      }));
    }
    for (const [, legend] of boxes(".legend")) {
      for (const area of plot.querySelectorAll(".bglayer .bg, .cartesianlayer .plot")) {
        if (meets(legend, area.getBoundingClientRect())) clashes.push(`${plot.id}: legend / plot`);
      }
    }
    for (const [text, box] of [...boxes(groups[2]), ...boxes(groups[3])]) {
      if (box.left < whole.left - 1 || box.right > whole.right + 1) cut.push(`${plot.id}: ${text}`);
    }
    const marks = [...plot.querySelectorAll(".trace path, .trace text, .heatmaplayer image, .barlayer path")]
      .filter((one) => one.getBoundingClientRect().width + one.getBoundingClientRect().height > 0);
    if (marks.length === 0) empty.push(plot.id);
  }
  const told = document.createElement("script");
  told.id = "told";
  told.type = "application/json";
  told.textContent = JSON.stringify({
    errors: view.faults, drawn: page.documentElement.dataset.drawn ?? "", clashes, cut, empty,
    plots: [...page.querySelectorAll(".js-plotly-plot")].map((one) => one.id),
    width: view.innerWidth, scroll: page.documentElement.scrollWidth,
    dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
  });
  document.body.replaceChildren(told);
}, 500));
"""
_CATCH = (
    "<script>window.faults = []; window.onerror = (text) => { window.faults.push(String(text)); };"
    "console.error = (...text) => { window.faults.push(text.join(' ')); };</script>"
)


def layout(html: str, width: int, folder: Path) -> dict[str, Any]:
    """How ``html`` looks in a frame of ``width`` pixels.

    Returns:
        errors: of its scripts; drawn: "true" once they are through; plots, and of them empty: ids; clashes:
        texts that overlap; cut: texts beyond their chart; width, scroll: pixels of the frame and the page.
    """
    assert CHROMIUM is not None
    page = html.replace("<head>", f"<head>{_CATCH}", 1)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "frame.html"
    file.write_text(
        f'<!DOCTYPE html><body><iframe id="frame" style="border:0;width:{width}px;height:900px" '
        f'srcdoc="{escape(page, quote=True)}"></iframe><script>{_MEASURE}</script></body>',
        encoding="utf-8",
    )
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    told = re.search(r'<script id="told"[^>]*>(.*?)</script>', done.stdout, re.DOTALL)
    assert told, "the page never loaded"
    found: dict[str, Any] = json.loads(unescape(told[1]))
    return found
