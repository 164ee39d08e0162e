"""The API page: it builds without a warning, holds the whole surface, and stands without a network."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from itertools import product
from pathlib import Path

import pytest

import kplan
import kplan_policies
from docs.api.build import PARTS
from tests.dashboard.browser import chromium
from tests.report.browser import CHROMIUM, NO_BROWSER
from tests.report.theme import look

MODULES = [name for part in PARTS for name in part.modules]
INTERNAL = {
    "kplan.cli", "kplan.dashboard", "kplan.files", "kplan.formats", "kplan.interrupts", "kplan.jit",
    "kplan.locks", "kplan.parquetfooter", "kplan.plainjson", "kplan.plainparquet", "kplan.plainyaml",
    "kplan.policy_args",
}  # fmt: skip
"""The commands, their page, and what only kplan's own modules use."""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Path in the folder -> HTML."""
    out = tmp_path_factory.mktemp("api") / "pages"
    done = subprocess.run(
        [sys.executable, "-W", "error", "docs/api/build.py", "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (out / "search.js").stat().st_size > 0
    return {str(page.relative_to(out)): page.read_text() for page in out.rglob("*.html")}


def without_scripts(html: str) -> str:
    return re.sub(r"<(script|style)\b.*?</\1>", "", html, flags=re.DOTALL)


def test_every_module_is_on_the_page_or_named_as_internal(pages: dict[str, str]) -> None:
    assert set(pages) == {"index.html", *(f"{name.replace('.', '/')}.html" for name in MODULES)}
    top = {f"kplan.{one.name}" for one in pkgutil.iter_modules(kplan.__path__)}
    assert top - INTERNAL <= set(MODULES)
    assert top >= INTERNAL
    policies = {one.name for one in pkgutil.iter_modules(kplan_policies.__path__) if one.name[0] != "_"}
    assert {f"kplan_policies.{name}" for name in policies} <= set(MODULES)
    for name in MODULES:
        assert f'href="{name.replace(".", "/")}.html">{name}</a>' in pages["index.html"]


def test_every_link_within_the_pages_leads_somewhere(pages: dict[str, str]) -> None:
    ids = {path: set(re.findall(r'\bid="([^"]+)"', html)) for path, html in pages.items()}
    seen = 0
    for path, html in pages.items():
        for href in map(unescape, re.findall(r'<a\b[^>]*?\bhref="([^"]*)"', without_scripts(html))):
            if re.match(r"https?://", href):
                continue
            place, _, anchor = href.partition("#")
            target = path
            if place:
                folder = (ROOT / path).parent / place
                target = str(folder.resolve().relative_to(ROOT.resolve()))
            assert target in pages, f"{path}: {href}"
            assert not anchor or anchor in ids[target], f"{path}: {href}"
            seen += 1
    assert seen > 1000


def test_no_page_loads_anything(pages: dict[str, str]) -> None:
    for path, html in pages.items():
        loaded = re.findall(r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=[\"']([^\"']*)", html)
        loaded += re.findall(r"url\([\"']?([^)\"']*)", html) + re.findall(r"@import\s+([^;]*)", html)
        assert [one for one in loaded if not one.startswith("data:")] == [], path


def test_no_markup_of_a_docstring_is_left(pages: dict[str, str]) -> None:
    for path, html in pages.items():
        text = unescape(re.sub(r"<[^>]+>", "", without_scripts(html)))
        left = re.findall(
            r":(?:class|func|meth|mod|attr|data|exc):|``|`~|\w::\s|PydanticUndefined|ForwardRef", text
        )
        assert left == [], path
        headings = re.findall(r"^ *(?:Args|Returns|Raises|Attributes|Yields):.*\w", text, re.MULTILINE)
        assert headings == [], path


def test_a_role_is_a_link_and_a_section_a_list(pages: dict[str, str]) -> None:
    assert '<code><a href="#Searchable">Searchable</a></code>' in pages["kplan/space.html"]
    assert '<code><a href="kplan/policy.html">kplan.policy</a></code>' in pages["kplan_policies.html"]
    assert '<code><a href="engine.html#Replica.offer">' in pages["kplan/engine.html"] or (
        '<code><a href="#Replica.offer">' in pages["kplan/engine.html"]
    )
    raises = (
        r'<h6 id="raises">Raises:</h6>\s*<ul>\s*<li><strong>InputError:</strong>\s+no request, or an output'
    )
    assert re.search(raises, pages["kplan/acceptance.html"])
    assert "NDArray[float64]" in re.sub(r"<[^>]+>", "", pages["kplan/latency.html"])


@pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
def test_a_page_reads_light_and_dark_wide_and_narrow(pages: dict[str, str], tmp_path: Path) -> None:
    for name, html in pages.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(html)
    with chromium(tmp_path / "profile") as tab:
        for name in ("index.html", "kplan/policy.html", "kplan/simulate.html", "kplan_policies/table.html"):
            for scheme, width in product(("light", "dark"), (1280, 390)):
                seen = look(tab, tmp_path / name, width, scheme, "document.readyState === 'complete'")
                assert (seen["failed"], seen["fetched"], seen["faint"]) == ([], [], []), (name, scheme)
                assert seen["texts"] > 50
                assert seen["scroll"] <= width
                assert (seen["paper"] < 0.05) == (scheme == "dark")


def surface() -> Iterator[tuple[str, object, object]]:
    """(name, object, class that holds it or None) of what is public: see the words of the builder."""
    for name in MODULES:
        module = importlib.import_module(name)
        yield name, module, None
        own = [
            one for one, it in vars(module).items() if getattr(it, "__module__", "") == name and one[0] != "_"
        ]
        for public in getattr(module, "__all__", own):
            found = getattr(module, public)
            if inspect.isclass(found) or inspect.isfunction(found):
                yield f"{name}.{public}", found, None
            if inspect.isclass(found):
                for key, it in vars(found).items():
                    if inspect.isfunction(it) and key[0] != "_":
                        yield f"{name}.{public}.{key}", it, found


def test_all_that_is_public_says_what_it_is() -> None:
    untold = [name for name, found, _ in surface() if not (inspect.getdoc(found) or "").strip()]
    assert untold == []


PLAIN = re.compile(r"(?:int|float|bool|str|Ints|F64|I64|NDArray)\b")


def test_an_argument_that_its_type_does_not_explain_is_named() -> None:
    """Numbers, flags, texts and arrays: each part of the name begins a word of the docstring."""
    untold = []
    for name, found, _ in surface():
        for one in inspect.signature(found).parameters.values() if inspect.isfunction(found) else ():
            if PLAIN.match(str(one.annotation)):
                told = re.split(r"[\W_]+", (inspect.getdoc(found) or "").lower())
                if not all(
                    any(word.startswith(part) for word in told) for part in one.name.split("_") if part
                ):
                    untold.append(f"{name}({one.name})")
    assert untold == []
