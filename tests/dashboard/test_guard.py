"""Who may ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from kplan.dashboard.app import make_app
from kplan.dashboard.entry import WITHIN_S, WRONG, Wrong, read_token
from kplan.dashboard.guard import Guard
from kplan.dashboard.server import LARGEST_BODY
from kplan.errors import InputError
from tests.dashboard.made import answers
from tests.dashboard.served import answer_body

TOKEN = "0123456789abcdef-right"
HERE = "127.0.0.1:8050"


@pytest.fixture
def client() -> Iterator[FlaskClient]:
    """Of a page on loopback without a token."""
    made = answers()
    with make_app(made, Guard("127.0.0.1", None)).test_client() as client:
        yield client
    made.close()


@pytest.fixture
def guarded() -> Iterator[FlaskClient]:
    """Of a page on every interface, with a token."""
    made = answers()
    with make_app(made, Guard("0.0.0.0", TOKEN)).test_client() as client:
        yield client
    made.close()


def get(client: FlaskClient, path: str, host: str = HERE, **headers: str) -> tuple[int, str]:
    """Status and text."""
    answer = client.get(path, headers={"Host": host, **headers})
    return answer.status_code, answer.get_data(as_text=True)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "192.0.2.7", "example.org", "::", "0", "127.0.0.2", "::ffff:127.0.0.1", "fe80::1%lo", ""],
)
def test_another_host_needs_a_token(host: str) -> None:
    with pytest.raises(InputError, match="a token is needed"):
        Guard(host, None)
    Guard(host, TOKEN)


@pytest.mark.parametrize("address", ["192.0.2.7", "0.0.0.0", "::", "2001:db8::1"])
def test_a_localhost_that_is_elsewhere_needs_a_token(address: str) -> None:
    with pytest.raises(InputError, match=rf"it is {address}"):
        Guard("localhost", None, address)
    for home in ("127.0.0.1", "127.0.1.1", "::1"):
        Guard("localhost", None, home)


@pytest.mark.parametrize(
    "token",
    ["", "short", "0123456789abcde", "ü" * 20, "a" * 40, "abcdefgabcdefgabcdefg", "0123456789 abcdefgh"],
)
def test_a_weak_token_is_refused_without_saying_it(token: str) -> None:
    with pytest.raises(InputError) as refused:
        Guard("127.0.0.1", token)
    assert token == "" or token not in str(refused.value)


@pytest.mark.parametrize("host", [HERE, "localhost:8050", "localhost", "[::1]:8050", "LOCALHOST:1"])
def test_its_own_names_are_answered(client: FlaskClient, host: str) -> None:
    assert get(client, "/", host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8050",
        "127.0.0.1.evil.example",
        "192.0.2.7:8050",
        "localhost.evil.example",
        "a@b:c",
        "[",
        "127.0.0.1,evil.example",
    ],
)
@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/download/plan.json", "/assets/dashboard.js"])
def test_a_name_that_was_rebound_is_refused_everywhere(client: FlaskClient, host: str, path: str) -> None:
    status, text = get(client, path, host)
    assert (status, text.count("\n")) == (403, 1)


def test_on_all_interfaces_addresses_are_its_names_and_others_are_not(guarded: FlaskClient) -> None:
    told = {"Authorization": f"Bearer {TOKEN}"}
    assert get(guarded, "/", "192.0.2.7:8050", **told)[0] == 200
    assert get(guarded, "/", "evil.example", **told)[0] == 403


def test_another_site_may_not_ask(client: FlaskClient) -> None:
    body = json.dumps(answer_body("qps=12"))
    for origin, status in (("http://evil.example", 403), ("null", 403), (f"http://{HERE}", 200)):
        headers = {"Host": HERE, "Origin": origin}
        answer = client.post(
            "/_dash-update-component", data=body, headers=headers, content_type="application/json"
        )
        assert answer.status_code == status, origin


def test_a_broken_origin_is_refused(client: FlaskClient) -> None:
    assert get(client, "/", Origin="http://[") == (403, "error: another site may not ask\n")


@pytest.mark.parametrize(
    ("site", "mode", "dest", "path", "status"),
    [
        ("same-origin", "cors", "empty", "/download/plan.json", 200),
        ("none", "navigate", "document", "/download/plan.json", 200),
        ("cross-site", "navigate", "document", "/?qps=12", 200),  # a link in a chat
        ("cross-site", "navigate", "iframe", "/", 403),
        ("cross-site", "no-cors", "image", "/download/plan.json?qps=12", 403),
        ("same-site", "no-cors", "script", "/assets/dashboard.js", 403),  # another port of this machine
        ("cross-site", "navigate", "document", "/download/plan.json", 403),
    ],
)
def test_of_another_site_only_a_link_is_followed(
    client: FlaskClient, site: str, mode: str, dest: str, path: str, status: int
) -> None:
    told = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
    assert get(client, path, **told)[0] == status


@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/_dash-dependencies", "/download/plan.json"])
def test_every_request_needs_the_token(guarded: FlaskClient, path: str) -> None:
    assert get(guarded, path)[0] == 403
    assert get(guarded, path, Authorization=f"Bearer {TOKEN}x")[0] == 403
    assert get(guarded, path, Authorization=f"Bearer {TOKEN[:-1]}")[0] == 403
    assert get(guarded, path, Authorization=TOKEN)[0] == 403
    assert get(guarded, path, Cookie=f"kplan={TOKEN}")[0] == 403  # the cookie is not the token
    assert get(guarded, f"{path}?token={TOKEN}")[0] == 403  # nor is an address
    assert get(guarded, path, Authorization=f"Bearer {TOKEN}")[0] == 200


def test_the_form_turns_the_token_into_a_cookie_and_leads_to_the_question(guarded: FlaskClient) -> None:
    headers = {"Host": HERE, "Accept": "text/html"}
    form = guarded.get("/?qps=12", headers=headers)
    assert (form.status_code, form.headers["Cache-Control"]) == (403, "no-store")
    assert "qps=12" not in form.get_data(as_text=True)
    wrong = guarded.post("/?qps=12", headers=headers, data={"token": "wrong"})
    assert (wrong.status_code, wrong.get_data(as_text=True)) == (403, "error: the token is wrong\n")
    first = guarded.post("/?qps=12", headers=headers, data={"token": TOKEN})
    assert (first.status_code, first.headers["Location"]) == (303, "/?qps=12")
    cookie = first.headers["Set-Cookie"]
    assert TOKEN not in str(first.headers) + first.get_data(as_text=True)
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert guarded.get("/?qps=12", headers={"Host": HERE}).status_code == 200


def test_another_site_cannot_send_the_form(guarded: FlaskClient) -> None:
    headers = {"Host": HERE, "Origin": "http://evil.example"}
    assert guarded.post("/", headers=headers, data={"token": TOKEN}).status_code == 403
    assert guarded.get("/", headers={"Host": HERE}).status_code == 403


def test_after_ten_wrong_tokens_a_client_must_wait_and_those_inside_stay(guarded: FlaskClient) -> None:
    assert guarded.post("/", headers={"Host": HERE}, data={"token": TOKEN}).status_code == 303
    right = {"Authorization": f"Bearer {TOKEN}"}
    with guarded.application.test_client() as other:
        told = [get(other, "/", Authorization=f"Bearer wrong-{i}")[0] for i in range(WRONG)]
        assert told == [403] * WRONG
        refused = other.get("/", headers={"Host": HERE, **right})
        assert refused.status_code == 429
        assert 55 <= int(refused.headers["Retry-After"]) <= 60
        elsewhere = other.get("/", headers={"Host": HERE, **right}, environ_base={"REMOTE_ADDR": "192.0.2.9"})
        assert elsewhere.status_code == 200
    assert guarded.get("/", headers={"Host": HERE}).status_code == 200


def test_wrong_tokens_are_counted_by_network_and_forgotten_after_a_minute() -> None:
    now = [0.0]
    wrong = Wrong(lambda: now[0])
    for i in range(WRONG):
        assert wrong.wait_s("2001:db8::99") == 0
        wrong.count(f"2001:db8::{i:x}")  # one machine has the whole network
        now[0] += 1.0
    assert wrong.wait_s("2001:db8::99") == WITHIN_S - 1.0
    assert wrong.wait_s("2001:db8:0:1::99") == 0
    now[0] += WITHIN_S
    assert wrong.wait_s("2001:db8::1") == 0
    wrong.count("2001:db8::1")
    assert wrong.wait_s("2001:db8::1") == 0


def test_a_token_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    for mode in (0o644, 0o640, 0o602):
        path.chmod(mode)
        with pytest.raises(InputError, match="chmod 600"):
            read_token(path)
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    with pytest.raises(InputError, match="cannot be read"):
        read_token(tmp_path / "none")


def test_a_page_loads_nothing_from_elsewhere(client: FlaskClient) -> None:
    answer = client.get("/", headers={"Host": HERE})
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
    assert "http" not in policy
    assert (answer.headers["X-Frame-Options"], answer.headers["X-Content-Type-Options"]) == (
        "DENY",
        "nosniff",
    )
    assert not [name for name, _ in answer.headers if name.startswith("Access-Control-")]
    assert 'src="http' not in answer.get_data(as_text=True)


@pytest.mark.parametrize(
    "path",
    [
        "/download/..%2f..%2fetc%2fpasswd",
        "/download/%2fetc%2fpasswd",
        "/download/pyproject.toml",
        "/assets/../app.py",
        "/assets/..%2fapp.py",
        "/_dash-component-suites/dash/../../../etc/passwd",
        "/_dash-component-suites/kplan/dashboard/app.py",
    ],
)
def test_no_path_reaches_a_file(client: FlaskClient, path: str) -> None:
    status, text = get(client, path)
    assert status in (200, 404)
    if status == 200:  # what is no path of ours is the page itself
        assert "<title>kplan: what K at this load?</title>" in text
        assert len(text) == len(get(client, "/")[1])
    assert "root:" not in text
    assert "import" not in text


def test_a_download_is_checked_and_named(client: FlaskClient) -> None:
    answer = client.get("/download/vllm.yaml?qps=12", headers={"Host": HERE})
    assert answer.status_code == 200
    assert "num_speculative_tokens" in answer.get_data(as_text=True)
    assert answer.headers["Content-Disposition"] == "attachment; filename=vllm.yaml"
    assert get(client, "/download/plan.json?qps=0") == (
        400, "error: qps: got '0', input should be greater than or equal to 0.1\n",
    )  # fmt: skip


def test_a_large_or_broken_body_is_refused(client: FlaskClient) -> None:
    where = "/_dash-update-component"
    few = answer_body("qps=12") | {"inputs": []}
    for data in (b"{", b"[]", b'"x"', b'{"output": ["x"]}', b'{"output": "x.y"}', json.dumps(few).encode(),
                 json.dumps(few | {"inputs": [1, "x"]}).encode(), b"x" * (LARGEST_BODY + 1)):  # fmt: skip
        answer = client.post(where, data=data, headers={"Host": HERE}, content_type="application/json")
        assert answer.status_code in (400, 413)
        assert "Traceback" not in answer.get_data(as_text=True)
    assert get(client, "/")[0] == 200


def test_a_callback_takes_no_value_that_an_address_may_not_have(client: FlaskClient) -> None:
    for query in ("model=/etc/passwd", "qps=1e9", 12, None, {"qps": 1}):
        body = answer_body("")
        body["inputs"][0]["value"] = query
        answer = client.post("/_dash-update-component", json=body, headers={"Host": HERE})
        assert answer.status_code == 200
        shown = answer.get_json()["response"]
        assert "got" in json.dumps(shown["answer"])
        assert shown["evidence"] == {"hidden": True}
