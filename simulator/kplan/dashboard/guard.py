"""Who may ask: loopback by default, a token elsewhere; no page of another site, no name that was rebound."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from flask import Flask, Request, Response, request

from kplan.dashboard.entry import SHORTEST_TOKEN, Entry, check_token, refuse
from kplan.dashboard.server import LARGEST_BODY
from kplan.errors import InputError

LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer that does not say otherwise, as the scripts of the page do of their keeping."""


@dataclass(frozen=True)
class Guard:
    """Where the page is served, and what whoever asks must know.

    Attributes:
        token: None only where nobody but this machine can ask.
        address: what ``host`` was resolved to, once it was: a hosts file may say anything.
    """

    host: str
    token: str | None
    address: str | None = None

    def __post_init__(self) -> None:
        at_home = self.host in LOOPBACK and (self.address is None or ip_address(self.address).is_loopback)
        if self.token is None and not at_home:
            where = "" if self.address in (None, self.host) else f" (it is {self.address})"
            raise InputError(
                "--host", self.host, f"others could ask{where}: a token is needed there",
                f"give KPLAN_DASHBOARD_TOKEN or --token-file, of {SHORTEST_TOKEN} characters or more",
            )  # fmt: skip
        if self.token is not None:
            check_token(self.token)

    def known_host(self, header: str) -> bool:
        """Whether a Host header names this server; a page that rebound its own name to us does not.

        On all interfaces every address is ours, and no name but the machine's.
        """
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        bound = _address(self.address or self.host)
        if name in LOOPBACK or name in (self.host.lower(), str(bound)):
            return True
        everywhere = bound is not None and bound.is_unspecified
        return everywhere and (_address(name) is not None or name == socket.gethostname().lower())


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def own_page(asked: Request) -> bool:
    """Whether a page of ours asks, or a program; of another site or port, only a link to the page."""
    origin = asked.headers.get("Origin")
    try:
        if origin is not None and urlsplit(origin).netloc != asked.host:
            return False
    except ValueError:
        return False
    if asked.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
        return True
    fetched = [asked.headers.get(f"Sec-Fetch-{what}") for what in ("Mode", "Dest")]
    return asked.method == "GET" and asked.path == "/" and fetched == ["navigate", "document"]


def protect(server: Flask, guard: Guard, cookie: str, script_hashes: Sequence[str]) -> None:
    """Check every request before it is served, and tell the browser what the page may load.

    Args:
        cookie: name of the cookie of who knew the token.
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
            "form-action 'self'",
            "frame-ancestors 'none'",
        ]
    )

    entry = None if guard.token is None else Entry.of(guard.token, cookie)

    def before() -> Response | None:
        if not guard.known_host(request.host):
            return refuse(403, "this server is asked by a name that is not its own")
        if not own_page(request):
            return refuse(403, "another site may not ask")
        return None if entry is None else entry.check(request)

    def after(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    server.before_request(before)
    server.after_request(after)
