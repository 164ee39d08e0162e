"""The report of plans that were really made: every section is there, and a browser shows it whole."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from kplan.config.plan import Plan
from kplan.config.scenario import make_scenario
from kplan.report import render_report
from kplan.search import recommend
from tests.report.browser import CHROMIUM, NO_BROWSER, layout
from tests.report.test_report import ALWAYS, CHARTS, FROM_EVIDENCE, Page

SMALL = {"qps": 12.0, "max_k": 3, "workload": "gsm8k", "replications": 2, "max_num_seqs": 64}
REAL: dict[str, tuple[dict[str, object], set[str]]] = {
    "usual": ({"slo_tpot_ms": 20.0}, CHARTS),
    "closed loop": ({"qps": None, "concurrency": 4}, CHARTS),
    "saturated": ({"qps": 5000.0, "replicas": 1}, CHARTS - {"chart-slo", "chart-changes"}),
    "one request": ({"requests": 1, "replications": 1, "qps": 0.1}, CHARTS),
    "no drafts": (
        {"max_k": 0},
        ALWAYS | FROM_EVIDENCE - {"chart-changes", "chart-k-map", "chart-acceptance"},
    ),
    "lookup": ({"proposer": "ngram"}, CHARTS),
}


@cache
def planned(name: str) -> Plan:
    return recommend(make_scenario(SMALL | REAL[name][0]))


@pytest.mark.parametrize("name", REAL)
def test_every_section_is_drawn_from_a_real_plan(name: str) -> None:
    html = render_report(planned(name))
    page = Page(html)
    assert set(page.figures) <= REAL[name][1]
    assert set(page.figures) >= REAL[name][1] - {"chart-k-share"}  # where none changed its K
    assert len(html.encode()) < 6e6
    assert planned(name).answer.words in page.text
    for heading in ("Policies compared", "Known limitations of this answer", "What this rests on"):
        assert heading in page.text
    assert "NaN" not in page.text
    assert not page.attributes("src")


@pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
@pytest.mark.parametrize("name", ["usual", "saturated", "no drafts"])
def test_a_browser_shows_a_real_plan_whole_on_a_phone(name: str, tmp_path: Path) -> None:
    found = layout(render_report(planned(name)), 390, tmp_path)
    assert found["errors"] == []
    assert found["drawn"] == "true"
    assert found["empty"] == []
    assert found["scroll"] <= 390
    assert found["clashes"] == []
    assert found["cut"] == []
