"""The report: self-contained, safe, complete, and drawn by a real browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from kplan.config.evidence import Crossing, Front, KMap, Sensitivity, SloCurve, Sweep
from kplan.config.plan import Plan
from kplan.report import render_report
from kplan.report.limits import limits
from kplan.report.tables import html_table
from tests.export.sample import SATURATED, answered, make_plan, question, result, table_plans
from tests.report.browser import CHROMIUM, NO_BROWSER, layout
from tests.report.pictures import SHARES, change, curve, evidence, pictured

ALWAYS = {"chart-tpot", "chart-split", "chart-roofline", "chart-k-share"}
FROM_EVIDENCE = {
    "chart-sweep", "chart-changes", "chart-slo", "chart-k-map", "chart-front", "chart-acceptance",
}  # fmt: skip
CHARTS = ALWAYS | FROM_EVIDENCE


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
    return render_report(pictured())


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
    plan = pictured()
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


ROWS = {"chart-tpot", "chart-split", "chart-k-share", "chart-changes"}
"""Their other axis is names."""


def test_every_axis_of_numbers_has_a_title_with_its_unit(page: Page) -> None:
    for name, figure in page.figures.items():
        titles = [
            axis.get("title", {}).get("text", "") for key, axis in figure["layout"].items() if "axis" in key
        ]
        shown = [title for title in titles if title]
        assert len(shown) >= (1 if name in ROWS else 2), name
        for title in shown:
            assert re.search(r"\(.+\)|per second", title), (name, title)


@given(plan=table_plans())
@settings(max_examples=15, deadline=None)
def test_text_of_a_user_stays_text(plan: Plan) -> None:
    hostile = '</script><img src=x onerror="alert(1)"><b>bold</b>'
    named = f"my.policy:{hostile}"
    policies = (result("off"), result(named))
    shown = evidence(
        sweep=Sweep(
            unit="requests/s", asked=64.0, replications=5, curves=(curve(named, 1.0, 2.0, 3.0, 4.0, None),),
            crossings=(Crossing(below=named, above="off", load=20.0, ci95=None),),
        ),
        slo=(SloCurve(policy=named, shares=(0.0, 0.5, 0.9, 1.0), tpot_ms=(1.0,) * 4, ttft_ms=(1.0,) * 4),),
        sensitivity=Sensitivity(changes=(change(hostile, (2.0, 1.0), 1, 1),) * 2, closed_ms=None),
        limits=(hostile,),
    )  # fmt: skip
    page = Page(render_report(plan.model_copy(update={"policies": policies, "evidence": shown})))
    kinds = [tag for tag, _ in page.tags]
    assert kinds.count("script") == 3
    assert "img" not in kinds
    assert hostile in page.text
    for figure in page.figures.values():
        drawn = json.dumps(
            [[trace.get(key) for key in ("x", "y", "name", "hovertext", "text")] for trace in figure["data"]]
        )
        assert "<img" not in drawn


EMPTY = KMap(batches=(1,), contexts=(128,), best_k=((None,),), gain=((None,),), visited=None)


@pytest.mark.parametrize(
    ("plan", "missing"),
    [
        (
            pictured(
                policies=(result("off", **SATURATED), result("fixed:2", **SATURATED)),
                evidence=evidence(slo=(), sensitivity=None),
            ),
            {"chart-slo", "chart-changes", "chart-k-share"},
        ),
        (
            pictured(evidence=evidence(sweep=None, k_map=EMPTY, front=Front(best=(), off=()), acceptance=())),
            {"chart-sweep", "chart-k-map", "chart-front", "chart-acceptance"},
        ),
        (make_plan(), FROM_EVIDENCE),
        (make_plan(k_curve=(), assumptions=()), FROM_EVIDENCE | {"chart-roofline"}),
        (make_plan(policies=()), CHARTS - {"chart-roofline"}),
        (pictured(question=question(max_k=0)), {"chart-k-map"}),
        (pictured(question=question(qps=None, concurrency=128, slo_tpot_ms=None, slo_ttft_ms=None)), set()),
        (answered("off", k=0), FROM_EVIDENCE),
        (answered("sglang-ema"), FROM_EVIDENCE),
    ],
    ids=[
        "all saturated", "closed forms empty", "an older plan", "no curve", "no policy", "K = 0",
        "closed loop", "off", "ema",
    ],
)  # fmt: skip
def test_other_answers_render_without_empty_charts(plan: Plan, missing: set[str]) -> None:
    page = Page(render_report(plan))
    assert set(page.figures) == CHARTS - missing
    assert CHARTS - set(page.attributes("id")) == missing
    for name, figure in page.figures.items():
        drawn = [x for trace in figure["data"] for x in trace.get("x") or () if x is not None]
        assert drawn, name
    assert ("128 requests at a time" in page.text) == (plan.question.concurrency == 128)


def traces_of(page: Page, chart: str) -> dict[str, dict[str, Any]]:
    return {trace.get("name", ""): trace for trace in page.figures[chart]["data"]}


def test_other_loads_are_drawn_with_intervals_up_to_saturation(page: Page) -> None:
    data = page.figures["chart-sweep"]["data"]
    latency, throughput = (
        [trace for trace in data if trace["name"] == "K = 3" and trace["yaxis"] == axis]
        for axis in ("y", "y2")
    )
    assert (latency[0]["x"], latency[0]["y"]) == ([10.0, 30.0, 50.0, 64.0], [4.0, 6.0, 9.4, 11.6])
    assert latency[0]["error_y"]["array"] == pytest.approx([0.3] * 4)
    assert throughput[0]["y"] == [2000.0, 6000.0, 10000.0, 12800.0, 14000.0]
    assert [symbol.endswith("-open") for symbol in throughput[0]["marker"]["symbol"]] == [False] * 4 + [True]
    crossing = traces_of(page, "chart-sweep")["crossing"]
    assert crossing["x"] == [35.0]
    assert crossing["y"] == pytest.approx([6.0 + 3.4 * 5 / 20])  # on the line of K = 3 between 30 and 50
    assert "K = 3 is faster below 35.0 requests/s (95% 31.0 to 39.0), table above." in page.text
    marked = [shape["x0"] for shape in page.figures["chart-sweep"]["layout"]["shapes"]]
    assert marked == [64.0, 64.0]


def test_lines_that_do_not_cross_are_said_not_to() -> None:
    swept = evidence().sweep
    assert swept is not None
    told = "Neither the recommended line nor that of no speculation crosses another on every replication."
    apart = evidence(sweep=swept.model_copy(update={"crossings": ()}))
    assert told in Page(render_report(pictured(evidence=apart))).text
    alone = evidence(sweep=swept.model_copy(update={"crossings": (), "curves": swept.curves[:1]}))
    assert told not in Page(render_report(pictured(evidence=alone))).text


def test_what_would_change_the_answer_is_said_and_drawn(page: Page) -> None:
    assert "acceptance -20%: K = 2 is best; the answer is 9.6% slower." in page.text
    assert "context 4x: no K sustains the load on these replicas." in page.text
    assert "other GEMM times: K = 1 is best; the answer does not sustain the load." in page.text
    assert "acceptance +20%:" not in page.text
    losses = page.figures["chart-changes"]["data"][0]
    assert losses["x"] == ["0", "1", "2", "3", "4", "5"]
    assert losses["z"][0] == pytest.approx(
        [0.3, 14.1 / 11.6 - 1, 12.2 / 11.6 - 1, 0, 12.4 / 11.6 - 1, 14.9 / 11.6 - 1]
    )
    assert losses["z"][3] == [None] * 6
    cells = page.figures["chart-changes"]["data"][1]
    assert cells["text"][:6] == ["59", "22", "5", "<b>best</b>", "7", "28"]
    frames = [(shape["x0"] + shape["x1"]) / 2 for shape in page.figures["chart-changes"]["layout"]["shapes"]]
    assert frames == pytest.approx([3.0] * 5)


def test_an_answer_that_nothing_changes_says_so() -> None:
    rows = (change("as asked", (2.0, 1.0), 1, 1), change("acceptance -20%", (2.0, 1.2), 1, 1))
    shown = evidence(sensitivity=Sensitivity(changes=rows, closed_ms=1.0))
    assert "Under none of these changes" in Page(render_report(pictured(evidence=shown))).text


def test_the_map_has_a_cell_per_load_and_the_load_on_it(page: Page) -> None:
    grid = page.figures["chart-k-map"]["data"][0]
    assert len(grid["x"]) == 9
    assert len(grid["y"]) == 4
    for edges, centres in ((grid["x"], (1, 2, 4, 8, 16, 32, 64, 128)), (grid["y"], (128, 1024, 8192))):
        assert all(low < at < high for low, at, high in zip(edges, centres, edges[1:], strict=False))
    assert grid["z"][2] == [4, 4, 4, 4, 4, None, None, None]
    here = traces_of(page, "chart-k-map")["the load asked"]
    batch = 9.3 * 11.2
    assert here["x"] == [pytest.approx(batch)]
    assert here["error_x"]["array"] == [pytest.approx(120 - batch)]
    assert here["error_x"]["arrayminus"] == [pytest.approx(batch - 78)]
    path = traces_of(page, "chart-k-map")["path as the load grows"]
    assert path["x"] == pytest.approx([10 * 4.2 / 8, 30 * 6.1 / 8, 50 * 9.0 / 8, 64 * 11.2 / 8])


def test_the_front_is_drawn_by_k_with_the_answer_beside_it(page: Page) -> None:
    traces = traces_of(page, "chart-front")
    assert {"no speculation", "best: K = 1", "best: K = 3", "best: K = 4"} <= set(traces)
    assert (traces["recommended (simulated)"]["x"], traces["recommended (simulated)"]["y"]) == (
        [13890.0],
        [11.2],
    )


def test_acceptance_beyond_the_recording_is_hollow_and_named(page: Page) -> None:
    traces = traces_of(page, "chart-acceptance")
    assert traces["given those before it"]["y"] == pytest.approx([70.0] * 7)
    assert traces["of all steps"]["y"] == pytest.approx([100 * 0.7**d for d in range(1, 8)])
    assert [s.endswith("-open") for s in traces["of all steps"]["marker"]["symbol"]] == [False] * 5 + [
        True
    ] * 2
    assert "censored: nothing recorded" in traces


def test_shares_within_an_slo_are_drawn_beside_the_slo(page: Page) -> None:
    figure = page.figures["chart-slo"]
    table = next(trace for trace in figure["data"] if trace["name"] == "table" and trace["xaxis"] == "x")
    assert table["y"] == pytest.approx([0, 10, 50, 90, 95, 99, 100])
    assert table["x"] == pytest.approx([11.2 * (0.6 + 0.8 * share) for share in SHARES])
    assert "goodput 57.6 requests/s" in table["hovertext"][3]
    upright = [shape["x0"] for shape in figure["layout"]["shapes"] if shape["x0"] == shape["x1"]]
    assert upright == [20.0, 1000.0]


def test_limits_are_of_this_answer() -> None:
    plan = pictured(question=question(replications=1))
    told = limits(plan)
    assert told[0] == "One replication: no interval can be given. Use --replications 5."
    assert "The acceptance of eagle3 is that of another model." in told
    assert "1 of 4 figures are assumed, not measured: network." in told
    assert any("TPOT of 10.6 ms, -5% beside the simulation" in line for line in told)
    assert len(told) == 5
    page = Page(render_report(plan))
    assert all(line in page.text for line in told)
    saturated = plan.answer.model_copy(update={"saturated": True, "feasible": False})
    assert limits(plan.model_copy(update={"answer": saturated}))[0].startswith("The load is not sustained")


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


@pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_every_chart_with_the_network_off(html: str, tmp_path: Path, width: int) -> None:
    found = layout(html, width, tmp_path)
    assert found["errors"] == []
    assert found["drawn"] == "true"
    assert set(found["plots"]) == CHARTS
    assert found["empty"] == []
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["clashes"] == []
    assert found["cut"] == []


@pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
def test_the_browser_guard_sees_a_fault_an_overlap_an_empty_and_a_wide_page(tmp_path: Path) -> None:
    html = render_report(pictured())
    faults = (
        "body { min-width: 900px; }",
        "#chart-split .trace { display: none; }",
        "#chart-tpot .xtitle { transform: translateX(2000px); }",
        "#chart-k-map .ytick text { font-size: 80px !important; }",
    )
    broken = html.replace("draw();\n", "draw(); missing();\n", 1)
    broken = broken.replace("</style>", f"{' '.join(faults)}</style>", 1)
    found = layout(broken, 390, tmp_path)
    assert any("missing" in fault for fault in found["errors"])
    assert found["scroll"] >= 900
    assert found["empty"] == ["chart-split"]
    assert any(clash.startswith("chart-k-map") for clash in found["clashes"])
    assert any(text.startswith("chart-tpot") for text in found["cut"])


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
