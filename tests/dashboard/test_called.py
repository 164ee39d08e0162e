"""What is no question of the page never reaches Dash: 400 in one line, and nothing in the terminal."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient

from kplan.dashboard.app import make_app
from kplan.dashboard.guard import Guard
from tests.dashboard.made import answers

HEADERS = {"Host": "127.0.0.1"}
VALUES: list[Any] = [
    None, True, -1, 1e308, float("nan"), float("inf"), 10**400, "", "x", "\x00", "\ud800", "qps=NaN",
    "qps=-1", "qps=1e308", "qps=%00", "clients=1e30", "tp=1e999", "model=../../etc/passwd", "model=file:///etc/passwd",
    "traces=/etc/passwd", "drafter=/etc/passwd", "__class__=1", "?" * 50, "&" * 1000, [], [[[[]]]], {},
    {"query": 5}, {"query": "qps=1"}, {"a": {"b": 1}},
]  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    """Of a page on loopback."""
    made = answers()
    with make_app(made, Guard("127.0.0.1", None)).test_client() as client:
        yield client
    made.close()


@pytest.fixture(scope="module")
def calls(client: FlaskClient) -> list[dict[str, Any]]:
    """What the page may call, each as the page would but for its values; some run in the browser alone."""
    return [_call(one) for one in client.get("/_dash-dependencies", headers=HEADERS).get_json()]


def _call(known: dict[str, Any]) -> dict[str, Any]:
    pairs = [one.rpartition(".") for one in known["output"].strip(".").split("...")]
    outputs = [{"id": name, "property": prop.partition("@")[0]} for name, _, prop in pairs]
    parts = {
        part: [{"id": one["id"], "property": one["property"], "value": "qps=12"} for one in known[part]]
        for part in ("inputs", "state")
    }
    return {"output": known["output"], "outputs": outputs, **parts, "changedPropIds": []}


def _post(client: FlaskClient, body: object) -> tuple[int, str]:
    data = body if isinstance(body, bytes | str) else json.dumps(body)
    answer = client.post(
        "/_dash-update-component", data=data, headers=HEADERS, content_type="application/json"
    )
    return answer.status_code, answer.get_data(as_text=True)


def _is_refusal(told: tuple[int, str]) -> bool:
    return told == (400, "error: this is no question of the page\n")


def _in_browser(call: dict[str, Any]) -> bool:
    return "slider" in call["output"] or call["output"] == "ask.data"


def test_what_runs_in_the_browser_is_not_called_here(
    client: FlaskClient, calls: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    theirs = [call for call in calls if _in_browser(call)]
    assert len(theirs) == 8  # a slider a knob, and the address
    assert all(_is_refusal(_post(client, call)) for call in theirs)
    assert capfd.readouterr().err == ""


def test_any_value_gets_an_answer_or_a_refusal(
    client: FlaskClient, calls: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    ours = [call for call in calls if not _in_browser(call)]
    assert len(ours) == 4
    for call in ours:
        assert _post(client, call)[0] in (200, 204)
        for value in VALUES:
            body = copy.deepcopy(call)
            for one in body["inputs"]:
                one["value"] = value
            status, text = _post(client, body)
            assert (status in (200, 204)) != _is_refusal((status, text)), (call["output"], value)
            assert "Traceback" not in text
            assert "root:" not in text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("key", ["output", "outputs", "inputs", "state", "changedPropIds", "unknown"])
def test_a_call_of_another_shape_is_refused(
    client: FlaskClient, calls: list[dict[str, Any]], key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    call = next(call for call in calls if call["output"].startswith("..answer"))
    for value in (
        1,
        "x",
        {},
        [None],
        [[1]],
        [{}],
        [{"id": {}}],
        ["no.such"],
        [["ask.data"]],
        True,
        ["ask.data"] * 9,
    ):
        assert _is_refusal(_post(client, call | {key: value})), value
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("query", "status"),
    [("endId=x", 200), ("cancelJob=1", 400), ("cacheKey=/etc/passwd&job=1", 400), ("oldJob=2", 400)],
)
def test_no_job_is_named_in_the_address(
    client: FlaskClient, calls: list[dict[str, Any]], query: str, status: int
) -> None:
    call = next(call for call in calls if call["output"].startswith("..answer"))
    assert client.post(f"/_dash-update-component?{query}", json=call, headers=HEADERS).status_code == status


def test_bombs_are_refused(
    client: FlaskClient, calls: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    call = next(call for call in calls if call["output"].startswith("..answer"))
    text = json.dumps(call)
    for bomb in (
        *("[" * deep + "]" * deep for deep in (2, 500, 900, 20_000)),
        '{"a":' * 900 + "1" + "}" * 900, "9" * 5000, '{"a":[' + "0," * 9000 + "0]}",
        "{" + ",".join(f'"k{i}":0' for i in range(3000)) + "}",
    ):  # fmt: skip
        assert _is_refusal(_post(client, text.replace('"qps=12"', bomb, 1))), bomb[:20]
    assert _is_refusal(_post(client, "[" * 60_000))
    assert _is_refusal(_post(client, call | {f"k{i}": 0 for i in range(3000)}))
    assert _post(client, "x" * 10_000_000)[0] == 413
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_fault_of_ours_is_one_line_whatever_the_environment_says(
    debug: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FLASK_DEBUG", debug)
    monkeypatch.setenv("DASH_DEBUG", debug)
    made = answers()

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret\nof ours")

    monkeypatch.setattr(made.desk, "ask", fail)
    with make_app(made, Guard("127.0.0.1", None)).test_client() as client:
        answer = client.get("/download/plan.json", headers=HEADERS)
        assert answer.status_code == 500
        assert answer.get_data(as_text=True).count("\n") == 1
        assert "secret" not in answer.get_data(as_text=True)
    made.close()
    (told,) = caplog.records
    assert told.exc_info is None  # no frames
    assert "\n" not in told.getMessage()
    assert "ZeroDivisionError: secret of ours" in told.getMessage()
