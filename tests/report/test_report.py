"""The report: self-contained, safe, complete, and drawn by a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from kplan.config.plan import Plan
from kplan.report import render_report
from kplan.report.tables import html_table
from tests.export.sample import SATURATED, answered, make_plan, question, result, table_plans

CHARTS = {"chart-tpot", "chart-throughput", "chart-k-curve", "chart-split", "chart-roofline", "chart-k-share"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

BROWSER_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--proxy-server=127.0.0.1:9",  # nothing listens there: the network is off
    "--virtual-time-budget=20000",
    "--window-size=390,844",
    "--dump-dom",
)


class Page(HTMLParser):
    """What a browser would see: elements, their attributes, visible text, and the figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.visible: list[str] = []
        self.figures: dict[str, Any] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = "figures" if dict(attrs).get("id") == "figures" else tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "figures":
            assert "<" not in data, "a browser would look for the end of the script in there"
            self.figures = json.loads(data)
        elif self._inside not in ("script", "style"):
            self.visible.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.visible).split())

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]


@pytest.fixture(scope="module")
def html() -> str:
    return render_report(make_plan())


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_is_one_small_file_that_asks_for_nothing(html: str, page: Page) -> None:
    assert len(html.encode()) < 6e6
    assert not page.attributes("src")
    assert not page.attributes("href")
    assert any("default-src 'none'" in content for content in page.attributes("content"))
    assert "@import" not in html.partition("</style>")[0]


def test_says_the_answer_and_every_assumption_with_its_provenance(page: Page) -> None:
    plan = make_plan()
    assert plan.answer.words in page.text
    for line in plan.answer.why:
        assert line in page.text
    for item in plan.assumptions:
        assert item.source in page.text
        assert item.value in page.text
    assert page.text.index(plan.answer.words) < page.text.index("Policies compared")
    assert plan.scenario_hash in page.text


def test_draws_the_figures_of_the_plan(page: Page) -> None:
    plan = make_plan()
    assert set(page.figures) == CHARTS
    assert set(page.attributes("id")) >= CHARTS
    mean = page.figures["chart-tpot"]["data"][0]
    known = [r.tpot_ms for r in plan.policies if r.tpot_ms is not None]
    assert mean["x"] == [stat.mean for stat in known]
    assert mean["error_x"]["array"] == pytest.approx([stat.ci95[1] - stat.mean for stat in known])
    assert mean["error_x"]["arrayminus"] == pytest.approx([stat.mean - stat.ci95[0] for stat in known])
    parts = page.figures["chart-split"]["data"]
    assert [part["name"] for part in parts] == ["verify", "draft", "sampling", "overhead"]
    for at, policy in enumerate(plan.policies):
        step_s = sum(policy.split.model_dump().values())
        assert sum(part["x"][at] for part in parts) == pytest.approx(1e3 * step_s)
    bars = page.figures["chart-throughput"]["data"]
    assert sorted(x for bar in bars for x in bar["x"]) == sorted(r.output_tok_s for r in plan.policies)
    shares = page.figures["chart-k-share"]["data"]
    assert [sum(part["x"][row] for part in shares) for row in range(4)] == pytest.approx([100.0] * 4)


def test_roofline_has_a_point_per_k_and_ceilings_that_bend_at_the_ridge(page: Page) -> None:
    plan = make_plan()
    sheet, attainable, points = page.figures["chart-roofline"]["data"]
    assert points["x"] == [p.flops_per_byte for p in plan.k_curve]
    assert points["y"] == [p.tflops for p in plan.k_curve]
    for line, flops, bandwidth in ((sheet, 989.0, 3.35), (attainable, 989 * 0.817, 3.35 * 0.874)):
        (x_low, x_bend, _), (y_low, y_bend, y_high) = line["x"], line["y"]
        assert y_bend == y_high == pytest.approx(flops)
        assert x_bend == pytest.approx(flops / bandwidth)
        assert y_low / x_low == pytest.approx(bandwidth)


def test_every_axis_of_numbers_has_a_title_with_its_unit(page: Page) -> None:
    for name, figure in page.figures.items():
        titles = [
            axis.get("title", {}).get("text", "") for key, axis in figure["layout"].items() if "axis" in key
        ]
        shown = [title for title in titles if title]
        assert shown, name
        for title in shown:
            assert re.search(r"\(.+\)|per second|tokens/s", title), (name, title)


@given(plan=table_plans())
@settings(max_examples=15, deadline=None)
def test_text_of_a_user_stays_text(plan: Plan) -> None:
    hostile = '</script><img src=x onerror="alert(1)"><b>bold</b>'
    policies = (result("off"), result(f"my.policy:{hostile}"))
    page = Page(render_report(plan.model_copy(update={"policies": policies})))
    kinds = [tag for tag, _ in page.tags]
    assert kinds.count("script") == 3
    assert "img" not in kinds
    assert hostile in page.text
    for figure in page.figures.values():
        drawn = json.dumps(
            [[trace.get("y"), trace.get("hovertext"), trace.get("text")] for trace in figure["data"]]
        )
        assert "<img" not in drawn


@pytest.mark.parametrize(
    "plan",
    [
        make_plan(policies=(result("off", **SATURATED), result("fixed:2", **SATURATED))),
        make_plan(k_curve=(), assumptions=()),
        make_plan(policies=()),
        make_plan(question=question(qps=None, concurrency=128, slo_tpot_ms=None, slo_ttft_ms=None)),
        answered("off", k=0),
        answered("sglang-ema"),
    ],
    ids=["all saturated", "no curve", "no policy", "closed loop", "off", "ema"],
)
def test_other_answers_render_without_empty_charts(plan: Plan) -> None:
    page = Page(render_report(plan))
    assert ("chart-k-curve" in page.figures) == bool(plan.k_curve)
    for name, figure in page.figures.items():
        assert any(len(trace.get("x") or ()) for trace in figure["data"]), name
    assert ("128 requests at a time" in page.text) == (plan.question.concurrency == 128)


def test_names_on_axes_are_distinct_even_when_shortened() -> None:
    names = (
        "table:1-=3",
        "table:1-4=3,5-=1",
        "a.very.long.module:AVeryLongPolicyName",
        "b.c:AVeryLongPolicyNameToo",
    )
    page = Page(render_report(make_plan(policies=tuple(result(name) for name in names))))
    rows = page.figures["chart-split"]["data"][0]["y"]
    assert len(set(rows)) == 4
    assert all(len(row) <= 18 for row in rows)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the page is not drawn")
def test_a_browser_draws_every_chart_with_the_network_off(html: str, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    (tmp_path / "report.html").write_text(html, encoding="utf-8")
    address = (tmp_path / "report.html").as_uri()
    command = [CHROMIUM, *BROWSER_FLAGS, f"--user-data-dir={tmp_path / 'profile'}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    page = Page(done.stdout)
    assert ("html", "true") in [(tag, attrs.get("data-drawn")) for tag, attrs in page.tags]
    for chart in CHARTS:
        drawn = done.stdout.split(f'id="{chart}"', 1)[1].split("</section>", 1)[0]
        assert 'class="main-svg"' in drawn, chart
        assert re.search(r'class="(point|points|lines|js-line)', drawn), chart


def test_every_cell_of_a_table_carries_its_head() -> None:
    made = html_table(("a & b", "c"), [("", ["1", "2"])])
    assert '<td data-head="a &amp; b">1</td><td data-head="c">2</td>' in made
    with pytest.raises(ValueError, match="shorter"):
        html_table(("a", "b"), [("", ["1"])])


def test_gpus_of_a_server_count_its_ranks() -> None:
    html = render_report(answered("fixed:3", k=3, tp=2, dp=4, router="least-outstanding"))
    assert "replicas of 8 GPUs" in html
    assert "TP 2 x DP 4" in html
    assert "least-outstanding" in html
    assert (
        "GPUs" not in render_report(answered("fixed:3", k=3)).partition("<main>")[2].partition("<script>")[0]
    )
