"""How much of a request is missing, within bounds; what is no request is refused before anything reads it."""

from __future__ import annotations

import http.client
import io
import re
from email.message import Message
from http import HTTPStatus

LONGEST_LINE = 8192
"""Bytes of a request's first line."""
LONGEST_HEAD = 32_768
"""Bytes of its head: the first line and the headers."""
LARGEST_BODY = 65_536
"""Bytes of a request that are read after its head."""
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_FIRST_LINE = re.compile(rb"[A-Z]{1,20} [\x21-\x7e]+ HTTP/1\.[01]")


class RefusedError(Exception):
    """What was sent is no request that is served; ``reply`` says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.reply = reply(status, why)


def reply(status: int, why: str) -> bytes:
    """A whole answer of one line."""
    body = f"error: {why}\n".encode()
    again = "Retry-After: 1\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
    return (
        f"HTTP/1.0 {status} {HTTPStatus(status).phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nX-Content-Type-Options: nosniff\r\n{again}Connection: close\r\n\r\n"
    ).encode() + body


def missing(got: bytes | bytearray) -> int | None:
    """Bytes of the request ``got`` that have not come yet; None while not even its head is there.

    Raises:
        RefusedError: too long, or no request.
    """
    line, found_line, _ = bytes(got[: LONGEST_LINE + 1]).partition(b"\n")
    if len(line) > LONGEST_LINE:
        raise RefusedError(414, f"an address of more than {LONGEST_LINE} bytes is not read")
    if found_line and not _FIRST_LINE.fullmatch(line.rstrip(b"\r")):
        raise RefusedError(400, "this is no request of HTTP/1.0 or 1.1")
    end = _HEAD_END.search(got, 0, LONGEST_HEAD)
    if end is None:
        if len(got) >= LONGEST_HEAD:
            raise RefusedError(431, f"headers of more than {LONGEST_HEAD} bytes are not read")
        return None
    length = _body_bytes(_headers(bytes(got[len(line) + 1 : end.end()])))
    return max(0, end.end() + length - len(got))


def _headers(text: bytes) -> Message:
    try:
        headers = http.client.parse_headers(io.BytesIO(text))
    except http.client.HTTPException:
        raise RefusedError(431, "too many headers") from None
    if headers.defects or headers.get_payload():
        raise RefusedError(400, "the headers cannot be read")
    if len(headers.get_all("Host", [])) != 1:
        raise RefusedError(400, "a request has one Host header")
    return headers


def _body_bytes(headers: Message) -> int:
    """Of the body, which has one length, said in advance: two servers that read a request one after the other
    then agree where it ends."""
    if headers.get_all("Transfer-Encoding"):
        raise RefusedError(411, "a body must say its length")
    lengths = headers.get_all("Content-Length", ["0"])
    if len(lengths) > 1 or not re.fullmatch("[0-9]{1,20}", lengths[0].strip()):
        raise RefusedError(400, "a body has one length")
    if int(lengths[0]) > LARGEST_BODY:
        raise RefusedError(413, f"a body of more than {LARGEST_BODY} bytes is not read")
    return int(lengths[0])
