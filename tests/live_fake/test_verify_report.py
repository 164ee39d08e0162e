"""The page of a verification: what it says, whole and safe."""

from __future__ import annotations

import dataclasses

from kplan.live.judge_words import record_of, words
from kplan.live.server import ServerInfo
from kplan.live.verify import Verification
from kplan.report.verify import render_verification
from tests.live_fake.verified import Truth, hold, ready
from tests.report.test_report import Page

EVIL = "<script>alert(1)</script>"


def found_on(truth: Truth) -> Verification:
    """A verification on a made-up server, with what a page must not take for markup."""
    plan = ready()
    held = hold(plan, truth)
    return Verification(
        plan=plan.plan,
        server=ServerInfo("vllm", "0.32.0", EVIL, None),
        load=f"concurrency 8 {EVIL}",
        generator="vllm bench serve",
        findings=(f"a finding {EVIL}",),
        figures=tuple(held.figures.values()),
        positions=((0.7, 0.4), (0.5, 0.2)),
        attribution=held.attribution,
        notes=(f"a note {EVIL}",),
        duration_s=12.5,
    )


def test_the_page_says_what_is_off_and_why() -> None:
    found = found_on(Truth(shift=-1.0))
    text = render_verification(found)
    page = Page(text)
    seen = " ".join(page.visible)
    assert words(found) in seen
    assert "The same with the measured acceptance" in seen
    assert EVIL in seen
    assert EVIL not in text
    assert set(page.figures) == {"chart-parity", "chart-positions"}
    bars = page.figures["chart-positions"]["data"]
    assert [bar["y"] for bar in bars] == [[0.7, 0.5], [0.4, 0.2]]
    points = {
        at: x
        for series in page.figures["chart-parity"]["data"]
        for at, x in zip(series["y"], series["x"], strict=True)
    }
    shown = [one for one in found.figures if one.predicted]
    assert len(points) == len(shown)
    assert points[len(shown) - 1] == 1 + shown[0].change


def test_no_cause_is_shown_where_all_agrees() -> None:
    found = dataclasses.replace(found_on(Truth()), positions=())
    page = Page(render_verification(found))
    assert "The same with the measured" not in " ".join(page.visible)
    assert set(page.figures) == {"chart-parity"}
    assert record_of(found)["under_the_causes"] == []
