"""Every page of kplan on a light and on a dark screen, wide and narrow: its texts read, its charts fit in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kplan.acceptance import load_traces
from kplan.acceptance.describe import complementarity, describe
from kplan.latency.fit import Measured, fit_calibration
from kplan.latency.fit_steps import read_steps
from kplan.latency.fit_tpot import read_tpot
from kplan.report import render_acceptance, render_leaderboard, render_report, render_residuals
from kplan.report.marks import ink_on, shade
from kplan.report.parity import render_parity
from kplan.report.verify import render_verification
from kplan.validate.load import load_tables
from kplan.validate.run import validate
from tests.dashboard.browser import Tab, chromium
from tests.latency.test_fit_measured import BASE, HARDWARE, SERVED, write_log, write_table
from tests.live_fake.test_verify_report import found_on
from tests.live_fake.verified import Truth
from tests.report.browser import CHROMIUM, NO_BROWSER
from tests.report.pictures import pictured
from tests.report.test_leaderboard import made_board
from tests.report.theme import look


def acceptance_page() -> str:
    """Of the recording that ships, which has two proposers."""
    traces = load_traces(Path("example"))
    return render_acceptance("example", "here", describe(traces), complementarity(traces), traces.notes)


def residuals_page() -> str:
    """Of steps and runs that a made server took, with and without drafts."""
    with TemporaryDirectory() as folder:
        steps = read_steps(write_log(Path(folder) / "steps.jsonl", (1, 16, 128)))
        runs = read_tpot(write_table(Path(folder) / "tpot.csv", (1, 32, 128)))
    return render_residuals(fit_calibration(HARDWARE, BASE, measured=Measured(SERVED, [*steps, *runs])))


PAGES: dict[str, Callable[[], str]] = {
    "report": lambda: render_report(pictured()),
    "leaderboard": lambda: render_leaderboard(made_board()),
    "verify": lambda: render_verification(found_on(Truth(shift=-1.0))),
    "acceptance": acceptance_page,
    "residuals": residuals_page,
    "validate": lambda: render_parity(validate(load_tables(["pr32374-off", "pr32374-dynamic"]))),
}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    if CHROMIUM is None:
        pytest.skip(NO_BROWSER)
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("name", PAGES)
def test_a_page_reads_on_a_light_and_a_dark_screen(name: str, tab: Tab, tmp_path: Path) -> None:
    page = tmp_path / f"{name}.html"
    page.write_text(PAGES[name](), encoding="utf-8")
    assert page.stat().st_size < 6e6
    for scheme, width in product(("light", "dark"), (1280, 390)):
        seen = look(tab, page, width, scheme)
        assert (seen["failed"], seen["fetched"]) == ([], [])
        assert seen["faint"] == [], scheme
        assert seen["texts"] > 30
        assert seen["inCharts"] > 10
        assert seen["scroll"] <= width
        if scheme == "dark":
            assert seen["paper"] < 0.05
            assert seen["white"] == []
        else:
            assert seen["paper"] > 0.9


def test_each_proposer_has_a_box_of_its_own(tab: Tab, tmp_path: Path) -> None:
    page = tmp_path / "acceptance.html"
    page.write_text(PAGES["acceptance"](), encoding="utf-8")
    look(tab, page, 390, "light")
    ticks = "[...document.querySelectorAll('#chart-spread .xtick')].map(one => one.textContent)"
    assert tab.js(ticks) == ["ngram, K=3", "suffix, K=3"]


def test_the_mark_of_a_row_lies_beside_its_text_on_a_phone(tab: Tab, tmp_path: Path) -> None:
    page = tmp_path / "residuals.html"
    page.write_text(PAGES["residuals"](), encoding="utf-8")
    for width in (1280, 390):
        look(tab, page, width, "light")
        gap = tab.js(
            "(() => { const row = document.querySelector('tr.recommended'); return "
            "row.querySelector('code').getBoundingClientRect().left - row.getBoundingClientRect().left })()"
        )
        assert gap >= 4 + 2, "the mark is 4 wide"


def test_the_look_sees_a_faint_text_a_white_ground_and_what_is_fetched(tab: Tab, tmp_path: Path) -> None:
    html = render_report(pictured())
    faults = ".xtitle { fill: #777 !important; } .main-svg { background: #fff !important; }"
    page = tmp_path / "broken.html"
    broken = html.replace("</style>", f"{faults}</style>", 1).replace("default-src 'none'; ", "", 1)
    page.write_text(broken.replace("img-src data: blob:", "img-src *", 1).replace(
        "<main>", '<main><img src="http://127.0.0.1:9/fetched.png" alt="">', 1
    ))  # fmt: skip
    seen = look(tab, page, 1280, "dark")
    assert any(text.startswith("load (requests/s)") for text in seen["faint"])
    assert "main-svg" in seen["white"]
    assert seen["fetched"] == ["http://127.0.0.1:9/fetched.png"]


@pytest.mark.parametrize("largest", range(1, 13))
def test_a_number_on_a_coloured_cell_reads(largest: int) -> None:
    for k in range(largest + 1):
        ink = 0.0 if ink_on(shade(k, largest)) == "#000000" else 1.0
        ground = luminance(shade(k, largest))
        assert (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05) >= 4.5


def luminance(colour: str) -> float:
    """Relative luminance of ``rgb(r, g, b)`` by WCAG 2.2."""
    parts = [float(one) / 255 for one in re.findall(r"[\d.]+", colour)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("style", "contrast"),
    [
        ("color: rgb(0, 0, 0); background: rgba(0, 0, 0, 0)", 21.0),
        # WebAIM's example of the lightest grey that passes on white
        ("color: rgb(118, 118, 118); background: rgb(255, 255, 255)", 4.54),
    ],
)
def test_contrast_is_that_of_the_standard(tab: Tab, tmp_path: Path, style: str, contrast: float) -> None:
    page = tmp_path / "page.html"
    page.write_text(f'<body style="background: rgb(255, 255, 255)"><p style="{style}">words</p>')
    found = look(tab, page, 1280, "light", ready="document.querySelector('p') !== null")
    assert found["texts"] == 1
    assert found["least"] == pytest.approx(contrast, abs=0.005)
