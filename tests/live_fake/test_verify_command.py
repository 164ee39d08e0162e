"""``kplan verify`` from the command line, against a fake server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kplan.acceptance import TraceSet
from kplan.acceptance.columns import pack
from kplan.acceptance.store import save_traces
from kplan.cli.app import run
from kplan.provenance import Kind, Provenance, file_digest
from tests.live_fake.fake import Engine, FakeServer, Faults
from tests.live_fake.verified import plan

K, OUTPUT = 4, 60
MODEL = "Llama-3.1-8B-Instruct"
FAR = "step=9,tpot=9,ttft=9,throughput=9"
"""Tolerances that any machine's clock meets: a fake server has no GPU."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for one client and drafts that are right 70% of the time, as the fake server's are."""
    folder = tmp_path_factory.mktemp("plan")
    rng = np.random.default_rng(3)
    rows = []
    for _ in range(300):
        acc = np.minimum(rng.geometric(0.3, OUTPUT), K + 1)
        acc[0] = 1
        rows.append(np.minimum(acc, np.arange(OUTPUT, 0, -1)).astype(np.uint8))
    traces = TraceSet(
        request_id=np.array([str(i) for i in range(300)]),
        prompt_len=np.full(300, 20, np.int32),
        proposers={"eagle3": pack(rows, None, np.ones(300, np.bool_), K)},
        provenance=Provenance(Kind.ASSUMED, "independent drafts"),
    )
    save_traces(traces, folder / "t.parquet")
    made = plan(
        "fixed:4",
        concurrency=1,
        traces="t.parquet",
        traces_hash=file_digest(folder / "t.parquet"),
        prompt_tokens=20,
        output_tokens=None,
    )
    (folder / "plan.json").write_text(made.model_dump_json())
    return folder


def _engine(**changes: Any) -> Engine:
    values: dict[str, Any] = {"model": MODEL, "step_s": 0.004, "k": K}
    return Engine(**(values | changes))


def _run(
    capsys: pytest.CaptureFixture[str], folder: Path, url: str, *more: str
) -> tuple[int, dict[str, Any], str]:
    code = run(["verify", str(folder), "--url", url, "--json", "--tolerance", FAR, *more])
    told = capsys.readouterr()
    return code, json.loads(told.out) if told.out else {}, told.err


def test_a_server_that_does_what_was_planned_agrees(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with FakeServer(_engine()) as fake:
        far = f"{FAR},acceptance=0.08"
        code, found, err = _run(
            capsys, folder, fake.url, "--requests", "60", "--out", str(out), "--tolerance", far
        )
    assert (code, found.get("verdict")) == (0, "agrees"), (err, found)
    assert found["findings"] == []
    assert found["causes"] == []
    assert found["load_generator"] == "kplan's own client"
    assert {path.name for path in out.iterdir()} == {"verify.json", "report.html"}
    assert json.loads((out / "verify.json").read_text())["figures"] == found["figures"]
    shares = [one["measured"] for one in found["acceptance_by_position"]]
    assert shares == pytest.approx(0.7 ** np.arange(1, K + 1), abs=0.06)


def test_acceptance_changed_behind_the_plan_s_back_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(_engine(alpha=0.4)) as fake:
        code, found, err = _run(capsys, folder, fake.url, "--requests", "60")
    assert code == 1, err
    assert found["causes"] == ["acceptance"]
    assert found["causes_explain_all"]
    assert "acceptance" in found["words"]


def test_words_come_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(_engine(alpha=0.4, model="another")) as fake:
        code = run(
            ["verify", str(folder / "plan.json"), "--url", fake.url, "--tolerance", FAR, "--requests", "40"]
        )
    lines = capsys.readouterr().out.splitlines()
    assert code == 1
    assert "what the plan has wrong is acceptance" in lines[0]
    assert lines[1] == "not as planned: the server serves another; the plan is for llama-3.1-8b"
    assert any(line.startswith("next: acceptance:") for line in lines)


def test_another_client_is_noticed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(_engine()) as fake:
        sent = 0

        def meanwhile(path: str, _: int) -> float:
            nonlocal sent
            sent += path == "/v1/completions"
            if sent == 10 and path == "/v1/completions":
                fake.serve_another(2)
            return 0.0

        fake.faults.wait_s = meanwhile
        _, found, _ = _run(capsys, folder, fake.url, "--requests", "20")
    assert any("another client was on it" in line for line in found["findings"])


def test_prompts_are_sent_as_they_are(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"w{i} w9", "max_tokens": 30}) + "\n" for i in range(20)))
    with FakeServer(_engine()) as fake:
        _run(capsys, folder, fake.url, "--prompts", str(file))
        mine = [one for one in fake.done if len(one.prompt) == 2]
    assert [one.prompt for one in mine] == [(i, 9) for i in range(20)]
    assert {len(one.tokens) for one in mine} == {30}


@pytest.mark.parametrize(
    ("engine", "faults", "more", "said"),
    [
        (_engine(k=0), Faults(), (), "does not speculate, and the plan drafts"),
        (_engine(max_model_len=50), Faults(), (), "max_model_len 50"),
        (_engine(), Faults(fail=lambda path, _: 500), (), "answers 500"),
        (
            _engine(),
            Faults(fail=lambda path, nth: 500 if "completions" in path and nth > 10 else None),
            (),
            "500",
        ),
        (_engine(), Faults(cut_after=lambda nth: 3 if nth == 12 else None), (), "broke off"),
        (_engine(), Faults(error_after=lambda nth: 3 if nth == 12 else None), (), "--url"),
        (_engine(step_s=0.2), Faults(), ("--limit-s", "3"), "--limit-s"),
        (_engine(metrics=False), Faults(), (), "answers 404"),
        (_engine(name="tgi"), Faults(), (), "a server of tgi answers there"),
    ],
    ids=["no speculation", "short", "500s", "500 later", "killed", "dies", "slow", "no metrics", "stranger"],
)
def test_what_goes_wrong_is_one_line_and_writes_nothing(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    engine: Engine,
    faults: Faults,
    more: tuple[str, ...],
    said: str,
) -> None:
    out = tmp_path / "out"
    with FakeServer(engine, faults) as fake:
        code, found, err = _run(capsys, folder, fake.url, "--requests", "20", "--out", str(out), *more)
    assert (code, found) == (2, {})
    assert said in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_counters_that_fall_are_a_restart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(_engine()) as fake:

        def anew(path: str, nth: int) -> float:
            if path == "/v1/completions" and nth == 23:
                fake.restart_counters()
            return 0.0

        fake.faults.wait_s = anew
        code, _, err = _run(capsys, folder, fake.url, "--requests", "20")
    assert code == 2
    assert "started anew" in err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--url", "http://127.0.0.1:9"), "cannot be reached"),
        (("--url", "nowhere"), "must begin with http://"),
        (("--url", "http://127.0.0.1:9", "--limit-s", "0"), "1..86400 seconds"),
        (("--url", "http://127.0.0.1:9", "--tolerance", "speed=1"), "names: acceptance"),
        (("--url", "http://127.0.0.1:9", "--api-key-env", "KPLAN_NO_SUCH"), "is not set"),
    ],
)
def test_flags_that_cannot_be_used(
    folder: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], said: str
) -> None:
    assert run(["verify", str(folder), *argv]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_plan_whose_traces_changed_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "plan.json").write_text((folder / "plan.json").read_text())
    with FakeServer(_engine()) as fake:
        for content, said in ((None, "it is not there"), (b"other", "it is not the file")):
            if content is not None:
                (tmp_path / "t.parquet").write_bytes(content)
            assert run(["verify", str(tmp_path), "--url", fake.url]) == 2
            assert said in capsys.readouterr().err
        (tmp_path / "plan.json").write_text("{}")
        assert run(["verify", str(tmp_path), "--url", fake.url]) == 2
        assert fake.asked["/v1/completions"] == 0


def test_requests_too_many_for_the_time_are_refused_before_any_is_sent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(_engine()) as fake:
        code, _, err = _run(capsys, folder, fake.url, "--requests", "5000", "--limit-s", "10")
        assert fake.asked["/v1/completions"] == 0
    assert code == 2
    assert "are predicted to take" in err
