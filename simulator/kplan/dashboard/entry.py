"""The token of the page: where it is read from, how it is given, and how often a wrong one may be tried."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path

from flask import Request, Response, redirect

from kplan.dashboard.kept import Kept
from kplan.errors import InputError
from kplan.files import check_readable

SHORTEST_TOKEN = 16
DIFFERENT = 8
"""Different characters of a token, at least."""
WRONG, WITHIN_S = 10, 60.0
"""Wrong tokens of one client within so many seconds, after which it must wait as long."""
CLIENTS = 1024
"""Clients whose wrong tokens are counted."""
_LARGEST_FILE = 4096
_SIGN_IN = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>kplan dashboard</title></head>
<body><form method="post" action="">
<p><label>Token of this dashboard
<input type="password" name="token" autocomplete="current-password" required autofocus></label>
<button>Open</button></p>
<p>Opened before? <a href="">Go on</a>.</p>
</form></body></html>
"""


def check_token(token: str) -> None:
    """Refuse a token that could be guessed.

    Raises:
        InputError: too short, too plain, or not of visible ASCII; it is not said back.
    """
    plain = all("!" <= one <= "~" for one in token)
    if len(token) < SHORTEST_TOKEN or len(set(token)) < DIFFERENT or not plain:
        raise InputError(
            "--token", f"{len(token)} characters, {len(set(token))} of them different",
            f"{SHORTEST_TOKEN} or more of visible ASCII are needed, {DIFFERENT} of them different",
            "for example that of `openssl rand -hex 16`",
        )  # fmt: skip


def read_token(path: Path) -> str:
    """The token in a file that only its owner may read; white space around it does not count.

    Raises:
        InputError: others may read it, or it cannot be read.
    """
    check_readable("--token-file", path, _LARGEST_FILE)
    if stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError("--token-file", str(path), "others may read it", f"chmod 600 {path}")
    return path.read_bytes().decode("ascii", "replace").strip()


class Wrong:
    """How many wrong tokens came from where, so that guessing is slow.

    Args:
        now: seconds, from anywhere.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._tried: Kept[str, tuple[float, int]] = Kept(CLIENTS)

    def wait_s(self, client: str) -> float:
        """Seconds that ``client`` must wait before it may try again; 0 when it may."""
        since_s, tried = self._tried.find(_neighbours(client)) or (0.0, 0)
        return max(0.0, since_s + WITHIN_S - self._now()) if tried >= WRONG else 0.0

    def count(self, client: str) -> None:
        """A wrong token came from ``client``."""
        key, now = _neighbours(client), self._now()
        since_s, tried = self._tried.find(key) or (now, 0)
        over = now - since_s >= WITHIN_S
        self._tried.put(key, (now, 1) if over else (now if tried + 1 >= WRONG else since_s, tried + 1))


def _neighbours(client: str) -> str:
    """An address; of IPv6 the network that one client usually has whole."""
    try:
        address = ip_address(client.partition("%")[0])
    except ValueError:
        return client
    return str(ip_network((address, 64), strict=False)) if address.version == 6 else client


@dataclass(frozen=True)
class Entry:
    """Lets in whoever knows the token: by a header, or by a cookie after a form; never by the address, which
    is kept in histories and passed on.

    Attributes:
        cookie: its name; its value is made anew at each start, and does not tell the token.
    """

    token: str
    cookie: str
    wrong: Wrong
    session: str

    @classmethod
    def of(cls, token: str, cookie: str) -> Entry:
        """With a session of its own."""
        return cls(token, cookie, Wrong(), secrets.token_urlsafe(32))

    def check(self, asked: Request) -> Response | None:
        """None when ``asked`` may go on; else what it is answered."""
        if same(asked.cookies.get(self.cookie), self.session):
            return None
        bearer = asked.headers.get("Authorization", "")
        given = bearer.removeprefix("Bearer ") if bearer.startswith("Bearer ") else None
        signs_in = asked.method == "POST" and asked.path == "/"
        if signs_in:
            given = asked.form.get("token", "")
        if given is None:
            return _ask_for_it(asked)
        client = asked.remote_addr or ""
        if (wait_s := self.wrong.wait_s(client)) > 0:
            return refuse(429, "too many wrong tokens: wait", {"Retry-After": f"{wait_s:.0f}"})
        if not same(given, self.token):
            self.wrong.count(client)
            return refuse(403, "the token is wrong")
        return self._let_in(asked) if signs_in else None

    def _let_in(self, asked: Request) -> Response:
        """A cookie, and back to the page at the question that was asked."""
        query = asked.query_string.decode("ascii", "replace")
        answer = redirect("/" + ("?" + query if query else ""), 303)
        response = Response(answer.get_data(), 303, answer.headers)
        response.set_cookie(self.cookie, self.session, httponly=True, samesite="Strict")
        return response


def same(given: str | None, right: str) -> bool:
    """Whether they are the same, in a time that does not tell how much of it."""
    digests = [hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in (given or "", right)]
    return given is not None and hmac.compare_digest(*digests)


def _ask_for_it(asked: Request) -> Response:
    """A form for a person, a line for a program."""
    if asked.method == "GET" and asked.path == "/" and "text/html" in asked.headers.get("Accept", ""):
        # with no-referrer, a browser would not say that the form is ours
        headers = {"Referrer-Policy": "same-origin"}
        return Response(_SIGN_IN, 403, headers, mimetype="text/html")
    return refuse(403, "the token is missing: open / first, or send Authorization: Bearer ...")


def refuse(status: int, why: str, headers: dict[str, str] | None = None) -> Response:
    """One line."""
    return Response(f"error: {why}\n", status, headers, mimetype="text/plain")
