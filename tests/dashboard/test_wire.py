"""Where a request ends, and what is none."""

from __future__ import annotations

import pytest

from kplan.dashboard.wire import LARGEST_BODY, LONGEST_HEAD, LONGEST_LINE, RefusedError, missing

GET = b"GET /?qps=12 HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.mark.parametrize("whole", [GET, b"POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345"])
def test_a_request_is_whole_at_its_last_byte_and_not_before(whole: bytes) -> None:
    head = whole.index(b"\r\n\r\n") + 4
    for cut in range(len(whole)):
        left = missing(whole[:cut])
        assert left == (len(whole) - cut if cut >= head else None), cut
    assert missing(whole) == 0
    assert missing(whole + b"more") == 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"a" * LONGEST_LINE, 414),
        (GET[:-2] + b"X: " + b"a" * LONGEST_HEAD, 431),
        (GET[:-2] + b"".join(b"X%d: 1\r\n" % i for i in range(200)) + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/<script>\r\nHost: a\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nno header\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (LARGEST_BODY + 1), 413),
    ],
)  # fmt: skip
def test_what_is_no_request_or_too_long_is_refused_in_one_line(sent: bytes, status: int) -> None:
    with pytest.raises(RefusedError) as refused:
        missing(sent)
    head, _, body = refused.value.reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 %d " % status)
    assert b"Content-Length: %d" % len(body) in head
    assert body.count(b"\n") == 1
    assert b"script" not in body
