"""Server-sent events of a streamed answer, and what the body of an error says; both of bounded length."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from kplan.live.server import packing, without_key
from kplan.live.told import StreamError

MOST_ANSWER_BYTES = 2**28
"""Longest answer that is read; SGLang repeats all token ids in each chunk."""
MOST_LINE_BYTES = 2**24
"""Longest event of it; a million token ids take half of that."""
_MOST_SAID = 2000
"""Bytes of an error's body that are read."""


async def events(reply: httpx.Response, api_key: str | None = None) -> AsyncIterator[dict[str, Any]]:
    """The objects of a stream of server-sent events. Raises StreamError for what is none, without the key."""
    async for line in _lines(reply):
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            continue
        shown = without_key(line[:_MOST_SAID].decode("utf-8", "replace"), api_key)[:40]
        try:
            event = json.loads(line[5:])
        except (ValueError, RecursionError):
            raise StreamError(f"sent {shown!r}, which is not JSON") from None
        if not isinstance(event, dict):
            raise StreamError(f"sent {shown!r}, which is no object")
        yield event


async def _lines(reply: httpx.Response) -> AsyncIterator[bytes]:
    """Lines by their ends alone: text may hold U+2028, at which httpx would part it. Raises StreamError."""
    if packed := packing(reply):
        raise StreamError(f"sent its answer as {packed[:40]}, which was not asked for")
    read, begun = 0, bytearray()
    async for piece in reply.aiter_raw():
        read += len(piece)
        if read > MOST_ANSWER_BYTES:
            raise StreamError(f"sent more than {MOST_ANSWER_BYTES:,} bytes")
        *ends, rest = piece.split(b"\n")
        for end in ends:
            yield bytes(begun) + end
            begun.clear()
        begun += rest
        if len(begun) > MOST_LINE_BYTES:
            raise StreamError(f"sent a line of more than {MOST_LINE_BYTES:,} bytes")
    yield bytes(begun)


async def said_by(reply: httpx.Response) -> str:
    """What the body of an error says."""
    body = bytearray()
    async for piece in reply.aiter_raw():
        body += piece
        if len(body) >= _MOST_SAID:
            break
    return _message(body[:_MOST_SAID].decode("utf-8", "replace"))


def _message(text: str) -> str:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for key in ("error", "message", "detail"):
        if isinstance(told, dict) and key in told:
            told = told[key]
    return str(told)
