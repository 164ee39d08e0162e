"""What pip-audit and pip answer, and what is made of it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.gates.audit import Audit, ask_yanked, pins, together, verdict, vulnerable, yanked


def told(*releases: dict[str, object]) -> str:
    return json.dumps({"dependencies": list(releases), "fixes": []})


CLEAN = {"name": "numpy", "version": "2.4.6", "vulns": []}
FLAW = {"id": "PYSEC-2026-1", "fix_versions": ["1.1", "2.0"], "aliases": ["CVE-2026-1"]}
UNKNOWN = {
    "name": "dash",
    "skip_reason": "Dependency not found on PyPI and could not be audited: dash (4.4.1)",
}


def test_all_clean_is_one_quiet_line() -> None:
    audit = vulnerable(told(CLEAN, {**CLEAN, "name": "scipy"}), 2)
    assert verdict("vulnerabilities", audit) == ["vulnerabilities: 2 of 2 releases are clean"]


def test_a_vulnerable_release_is_named_with_each_flaw_and_what_mends_it() -> None:
    audit = vulnerable(told(CLEAN, {"name": "bad", "version": "1.0", "vulns": [FLAW, {"id": "GHSA-x"}]}), 2)
    assert audit.bad == ("bad 1.0: PYSEC-2026-1, mended in 1.1, 2.0", "bad 1.0: GHSA-x, no mended release")
    assert audit.clean == 1
    assert audit.left == 0  # two flaws of one release


def test_what_the_index_does_not_know_is_neither_clean_nor_vulnerable() -> None:
    lines = verdict("vulnerabilities", vulnerable(told(CLEAN, UNKNOWN), 2))
    assert any("could not be audited: 1 of 2" in line for line in lines)
    assert not any("clean" in line and "not a clean" not in line for line in lines)


def test_a_flaw_is_told_though_others_could_not_be_audited() -> None:
    audit = vulnerable(told(UNKNOWN, {"name": "bad", "version": "1.0", "vulns": [FLAW]}), 2)
    assert (
        verdict("vulnerabilities", audit)[0] == "vulnerabilities: bad 1.0: PYSEC-2026-1, mended in 1.1, 2.0"
    )
    assert audit.left == 1


@pytest.mark.parametrize("answer", ["", "no JSON", "[]", "null", '{"fixes": []}'])
def test_no_answer_leaves_all_unaudited(answer: str) -> None:
    audit = vulnerable(answer, 162)
    assert (audit.left, audit.bad) == (162, ())
    assert any("162 of 162" in line for line in verdict("vulnerabilities", audit))


def test_a_release_left_out_of_the_answer_is_not_clean() -> None:
    assert vulnerable(told(CLEAN), 3).left == 2


def test_a_part_that_could_not_be_resolved_does_not_hide_the_others() -> None:
    whole = together([yanked("", 8, resolved=True), yanked("ERROR: no network", 5, resolved=False)])
    assert (whole.asked, whole.clean, whole.left) == (13, 8, 5)
    assert whole.why_not == "pip could not resolve them"
    assert together([Audit(2, 2, (), "")]).why_not == ""


def test_pins_are_the_releases_of_a_lock() -> None:
    assert pins("# a==1 note\nnumpy==2.4.6\n\nscipy==1.17.1  # why\n") == ["numpy==2.4.6", "scipy==1.17.1"]


def wheel(folder: Path, name: str, mark: str) -> str:
    """Put a wheel without content into ``folder``; returns its link for an index, marked ``mark``."""
    file = f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / file, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return f'<a href="{(folder / file).as_uri()}"{mark}>{file}</a>'


def test_pip_tells_a_yanked_release_from_a_good_one(tmp_path: Path) -> None:
    """On an index that is a folder: pip's own words, no network."""
    for name, mark in {"good": "", "torn": ' data-yanked="wrong &amp; late"'}.items():
        folder = tmp_path / "index" / name
        folder.mkdir(parents=True)
        page = f"<!DOCTYPE html><html><body>{wheel(tmp_path, name, mark)}</body></html>"
        (folder / "index.html").write_text(page, encoding="utf-8")
    here = ["--isolated", "--index-url", (tmp_path / "index").as_uri()]
    audit = ask_yanked(["good==1.0", "torn==1.0"], here)
    assert audit == Audit(2, 1, ("torn 1.0: yanked (wrong & late)",), "")
    assert ask_yanked(["good==1.0", "lost==1.0"], here).left == 2
