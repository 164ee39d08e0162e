"""The page in a headless Chromium, the network off: load, move a slider, read, download, come back."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from kplan.dashboard.app import make_app
from kplan.dashboard.guard import Guard
from tests.dashboard.browser import CHROMIUM, Tab, chromium
from tests.dashboard.made import answers
from tests.dashboard.served import ask, command, served
from tests.report.theme import seen

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")

WORDS = "(document.querySelector('#words')?.innerText ?? '')"
DRAWN = "document.querySelectorAll('.js-plotly-plot .xtitle').length === 2"


@pytest.fixture(scope="module")
def dashboard() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with command() as served:
        yield served


@pytest.fixture(scope="module")
def url(dashboard: tuple[subprocess.Popen[str], str]) -> str:
    return dashboard[1]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


def _opened(tab: Tab, url: str, width: int = 1280, height: int = 900) -> Tab:
    tab.call("Page.navigate", url="about:blank")
    tab.failed.clear()
    tab.open(url, width, height)
    tab.wait(DRAWN)
    return tab


def _press(tab: Tab, knob: str, key: str, code: int) -> None:
    tab.js(f"document.querySelector('#{knob}-slider [role=slider]').focus()")
    tab.key(key, code)


def _right(tab: Tab, knob: str) -> None:
    _press(tab, knob, "ArrowRight", 39)


def test_a_moved_slider_changes_the_answer_the_address_and_a_refresh_keeps_it(tab: Tab, url: str) -> None:
    _opened(tab, url + "?workload=gsm8k")
    before = tab.js(WORDS)
    assert "at 64 QPS" in before
    _right(tab, "qps")
    after = tab.wait(f"{WORDS} !== {json.dumps(before)} && {WORDS}")
    assert "at 66 QPS" in after  # steps lie 0.02 decades apart: 10 ** 1.82, to two digits
    assert tab.js("document.querySelector('h1').innerText") == "What K at 66 requests/s?"
    assert tab.js("location.search") == "?qps=66&workload=gsm8k"
    assert tab.js("document.querySelector('#qps').value") == "66"
    tab.call("Page.reload")
    tab.wait(f"{WORDS} === {json.dumps(after)}")
    assert tab.js("document.querySelector('#qps').value") == "66"
    assert "gsm8k" in tab.js("document.querySelector('#workload').innerText")
    assert tab.js("location.search") == "?qps=66&workload=gsm8k"
    assert tab.failed == []


def test_a_typed_number_moves_the_slider_and_an_end_empties_the_field(tab: Tab, url: str) -> None:
    _opened(tab, url + "?workload=gsm8k&slo_tpot=20")
    tab.js("document.querySelector('#slo_tpot').focus(); document.querySelector('#slo_tpot').select()")
    tab.type("100")
    tab.key("Enter", 13, text="\r")
    tab.wait("location.search.includes('slo_tpot=100')")
    at = "Number(document.querySelector('#slo_tpot-slider [role=slider]').getAttribute('aria-valuenow'))"
    tab.wait(f"Math.abs({at} - 2) < 0.02")
    _press(tab, "slo_tpot", "End", 35)
    tab.wait("!location.search.includes('slo_tpot')")
    assert tab.js("document.querySelector('#slo_tpot').value") == ""


def test_a_download_is_what_the_page_says(tab: Tab, url: str, tmp_path: Path) -> None:
    _opened(tab, url + "?workload=gsm8k&qps=12")
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    tab.js("document.querySelector('a[download=\"plan.json\"]').click()")
    end, told = time.monotonic() + 30, tmp_path / "plan.json"
    while not told.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    plan = json.loads(told.read_text())
    assert plan["answer"]["words"] == tab.js(WORDS)
    assert plan["question"]["qps"] == 12
    names = tab.js("[...document.querySelectorAll('#files a')].map(link => link.download)")
    assert names[:2] == ["plan.json", "vllm.yaml"]
    config = tab.js("fetch(document.querySelector('a[download=\"vllm.yaml\"]').href).then(r => r.text())")
    assert (
        f'"num_speculative_tokens": {plan["answer"]["k"]}' in config.replace("'", '"') or "num_spec" in config
    )


def test_a_hostile_address_is_named_and_the_page_stays_usable(tab: Tab, url: str) -> None:
    _opened(tab, url + "?model=<img src=x onerror=alert(1)>&qps=12")
    notice = tab.js("document.querySelector('#notice').innerText")
    assert "The address was not used" in notice
    assert "known: deepseek-v2-lite" in notice
    assert tab.js("document.querySelectorAll('#notice img').length") == 0
    assert "at 64 QPS" in tab.js(WORDS)
    assert tab.js("location.search") == ""


@pytest.mark.parametrize("name", ["model", "qps", "workload", "<b id=mine>", "__proto__"])
def test_nothing_in_an_address_runs_or_becomes_a_part_of_the_page(tab: Tab, url: str, name: str) -> None:
    evil = "<img id=mine src=x onerror=window.ran=1><script>window.ran=1</script>\"'javascript:window.ran=1"
    _opened(tab, f"{url}?{quote(name)}={quote(evil)}#{quote(evil)}")
    assert "The address was not used" in tab.js("document.querySelector('#notice').innerText")
    assert tab.js("window.ran ?? 0") == 0
    assert tab.js("document.querySelectorAll('#mine').length") == 0


def test_the_token_is_asked_for_by_a_form_and_stands_in_no_address(
    tab: Tab,
) -> None:
    token = "a-Token-of-0123456789"
    made = answers()
    with served(lambda: make_app(made, Guard("127.0.0.1", token))) as guarded:
        tab.call("Page.navigate", url="about:blank")
        tab.open(f"{guarded}/?qps=12", 1280, 900)
        tab.wait("document.querySelector('input[name=token]') !== null")
        tab.js("document.querySelector('input[name=token]').focus()")
        tab.type(token)
        tab.js("document.querySelector('button').click()")
        tab.wait(f"{WORDS} === 'answer to 12 requests/s'")
        assert tab.js("location.href") == f"{guarded}/?qps=12"
        assert tab.js("document.cookie") == ""  # a script does not see it
        entries = tab.call("Page.getNavigationHistory")["entries"]
        assert not [one for one in entries if token in json.dumps(one)]
        cookies = tab.call("Network.getCookies", urls=[guarded])["cookies"]
        assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
        assert token not in json.dumps(cookies)
        tab.call("Network.clearBrowserCookies")
        tab.failed.clear()
    made.close()


def test_a_question_without_an_answer_says_why(tab: Tab, url: str) -> None:
    tab.open(url + "?proposer=suffix&workload=mtbench", 1280, 900)
    tab.wait(f"{WORDS}.includes('workload mtbench has eagle')")
    tab.open(url + "?workload=gsm8k&slo_tpot=1", 1280, 900)
    tab.wait(f"{WORDS}.includes('no number of replicas')")
    assert tab.js("document.querySelector('#evidence').hidden") is True


def test_the_full_run_takes_the_place_of_the_quick_look(tab: Tab, url: str) -> None:
    _opened(tab, url + "?workload=gsm8k&qps=12")
    assert "Quick look" in tab.js("document.querySelector('#how').innerText")
    tab.js("document.querySelector('#full').click()")
    tab.wait("document.querySelector('#progress').innerText !== ''")
    tab.wait("document.querySelector('#how').innerText.startsWith('Full run: 5 x')", 300)
    tab.wait("document.querySelector('#progress').innerText.includes('full run')")


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_overlaps_or_is_cut(tab: Tab, url: str, width: int, height: int, theme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": theme}]
    tab.call("Emulation.setEmulatedMedia", features=features)
    _opened(tab, url, width, height)
    assert tab.js("document.documentElement.scrollWidth") <= width
    boxes = tab.js(
        "[...document.querySelectorAll("
        "'.top, .controls, #files, .charts section, #policies, .knob, .choice')].map(e => {"
        "const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom, e.className] })"
    )
    blocks = [box for box in boxes if box[4] not in ("knob", "choice")]
    rows = [box for box in boxes if box[4] in ("knob", "choice")]
    for group in (blocks, rows):
        for i, one in enumerate(group):
            assert one[2] <= width + 1
            assert one[3] - one[1] > 20
            for two in group[i + 1 :]:
                gaps = (two[0] - one[2], one[0] - two[2], two[1] - one[3], one[1] - two[3])
                assert max(gaps) >= -1, (one, two)
    marks = tab.js(
        "[...document.querySelectorAll('.js-plotly-plot')].map(plot => ['.xtitle', '.xtick text'].map(name =>"
        "[...plot.querySelectorAll(name)].map(e => e.getBoundingClientRect()).map(b => [b.top, b.bottom])))"
    )
    for titles, ticks in marks:
        assert max(bottom for _, bottom in ticks) <= titles[0][0] + 2, "a tick lies on the axis title"
    ink = tab.js("getComputedStyle(document.querySelector('.xtick text')).fill")
    assert ink == ("rgb(28, 32, 38)" if theme == "light" else "rgb(232, 234, 237)")
    assert tab.failed == []
    tab.call("Emulation.setEmulatedMedia", features=[])


def test_an_answer_under_way_leaves_the_one_before_readable_and_marked(tab: Tab, url: str) -> None:
    _opened(tab, url + "?qps=16")
    before = tab.js(WORDS)
    marked = "getComputedStyle(document.querySelector('#busy')).visibility === 'visible'"
    assert not tab.js(marked)
    _right(tab, "acceptance")
    tab.wait(f"document.documentElement.hasAttribute('data-asking') && {marked}")
    assert "what stands below answers the question before" in tab.js(
        "document.querySelector('#busy').textContent"
    )
    assert tab.js(WORDS) == before
    tab.wait(f"{WORDS} !== {json.dumps(before)}")
    tab.wait(f"!document.documentElement.hasAttribute('data-asking') && !({marked})")


def test_the_first_question_of_a_page_is_marked_and_says_nothing_of_one_before(tab: Tab, url: str) -> None:
    tab.open(url + "?proposer=ngram&workload=instructcoder&qps=7", 1280, 900)
    busy = "document.querySelector('#busy')"
    tab.wait(f"{busy} && getComputedStyle({busy}).visibility === 'visible'")
    assert tab.js(f"{busy}.innerText") == "Simulating."
    tab.wait(f"{WORDS}.includes('at 7 QPS')")
    assert tab.js(f"getComputedStyle({busy}).visibility") == "hidden"


def test_of_many_moves_the_last_is_what_is_answered(tab: Tab, url: str) -> None:
    _opened(tab, url + "?workload=gsm8k")
    for _ in range(12):
        _right(tab, "qps")
    tab.wait(f"{WORDS}.includes('at 110 QPS')")  # 10 ** (1.8 + 12 * 0.02), to two digits
    tab.wait("!document.documentElement.hasAttribute('data-asking')")
    assert tab.js("location.search") == "?qps=110&workload=gsm8k"
    assert "at 110 QPS" in tab.js(WORDS)
    assert tab.failed == []


def test_a_full_run_can_be_cancelled(tab: Tab, url: str) -> None:
    _opened(tab, url + "?workload=gsm8k&qps=13")
    assert tab.js("document.querySelector('#cancel').hidden") is True
    tab.js("document.querySelector('#full').click()")
    tab.wait("!document.querySelector('#cancel').hidden")
    tab.js("document.querySelector('#cancel').click()")
    tab.wait("document.querySelector('#cancel').hidden", 120)
    assert "Quick look" in tab.js("document.querySelector('#how').innerText")
    assert tab.js("document.querySelector('#progress').innerText") == ""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_ground(tab: Tab, url: str, theme: str) -> None:
    """WCAG 2: the contrast of every text with what is painted below it is 4.5 or more."""
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    _opened(tab, url + "?workload=gsm8k&qps=64")
    tab.js("document.querySelectorAll('details').forEach(one => { one.open = true })")
    found = seen(tab)
    tab.call("Emulation.setEmulatedMedia", features=[])
    assert found["texts"] > 200
    assert found["faint"] == []


def test_the_page_needs_no_network(url: str) -> None:
    page = ask(url)[1]
    assert "https://" not in page
