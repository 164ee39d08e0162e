"""Who may ask: loopback by default, a token elsewhere; no page of another site, no name that was rebound."""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlencode, urlsplit

from flask import Flask, Request, Response, redirect, request

from kplan.errors import InputError

LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
ANY = frozenset(("0.0.0.0", "::"))  # noqa: S104 - compared with
SHORTEST_TOKEN = 16
LARGEST_BODY = 65_536
"""Bytes of a request that are read."""


@dataclass(frozen=True)
class Guard:
    """Where the page is served, and what whoever asks must know.

    Attributes:
        token: None only where nobody but this machine can ask.
    """

    host: str
    token: str | None

    def __post_init__(self) -> None:
        if self.token is None and self.host not in LOOPBACK:
            raise InputError(
                "--host", self.host, "others could ask: a token is needed there",
                f"give --token (or KPLAN_DASHBOARD_TOKEN) of {SHORTEST_TOKEN} characters or more",
            )  # fmt: skip
        if self.token is not None and (len(self.token) < SHORTEST_TOKEN or not self.token.isascii()):
            raise InputError(
                "--token", f"{len(self.token)} characters", f"{SHORTEST_TOKEN} or more of ASCII are needed",
                "for example that of `openssl rand -hex 16`",
            )  # fmt: skip

    def known_host(self, header: str) -> bool:
        """Whether a Host header names this server; a page that rebound its own name to us does not.

        On all interfaces every address is ours, and no name but the machine's.
        """
        name = urlsplit(f"//{header}").hostname or ""
        if name in LOOPBACK or name == self.host.lower():
            return True
        return self.host in ANY and (_is_address(name) or name == socket.gethostname().lower())

    def known_token(self, given: str | None) -> bool:
        """Whether the token is right, in a time that does not tell how much of it."""
        if self.token is None:
            return True
        digests = [hashlib.sha256(text.encode()).digest() for text in (given or "", self.token)]
        return given is not None and hmac.compare_digest(*digests)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def protect(server: Flask, guard: Guard, cookie: str, script_hashes: Sequence[str]) -> None:
    """Check every request before it is served, and tell the browser what the page may load.

    Args:
        cookie: name of the cookie that holds the token after the first visit.
        script_hashes: of the inline scripts that the page needs.
    """
    server.config["MAX_CONTENT_LENGTH"] = LARGEST_BODY
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src 'self' {' '.join(script_hashes)}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "font-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )

    def before() -> Response | None:
        if not guard.known_host(request.host):
            return _refuse(403, "this server is asked by a name that is not its own")
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            return _refuse(403, "another site may not ask")
        return _check_token(guard, cookie, request)

    def after(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    server.before_request(before)
    server.after_request(after)


def _check_token(guard: Guard, cookie: str, asked: Request) -> Response | None:
    """None when the token is right; at a visit with it in the address, a cookie and the address without."""
    if guard.token is None:
        return None
    given = asked.args.get("token")
    if given is not None and guard.known_token(given):
        rest = urlencode([(key, value) for key, value in asked.args.items(multi=True) if key != "token"])
        response = redirect("/" + ("?" + rest if rest else ""), 303)
        response.set_cookie(cookie, guard.token, httponly=True, samesite="Lax")
        return Response(response.get_data(), 303, response.headers)
    bearer = asked.headers.get("Authorization", "")
    if bearer.startswith("Bearer ") and guard.known_token(bearer.removeprefix("Bearer ")):
        return None
    if guard.known_token(asked.cookies.get(cookie)):
        return None
    return _refuse(403, "the token is missing or wrong: open the address with ?token=...")


def _refuse(status: int, why: str) -> Response:
    return Response(f"error: {why}\n", status, mimetype="text/plain")
