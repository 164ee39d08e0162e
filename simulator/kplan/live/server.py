"""A running engine behind a URL: who it is, what it counts.

Requests to this machine never go through a proxy of the environment. Every wait is bounded; what goes wrong
becomes one line that names the URL.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from kplan.errors import InputError
from kplan.live.metrics import Snapshot, read_metrics

CONNECT_S = 5.0
"""Longest wait for a connection."""
ANSWER_S = 30.0
"""Longest wait for an answer that needs no generation."""
MOST_ANSWER_BYTES = 2**25
"""Longest answer that is read; the ids of a prompt of a million tokens take 8 MB."""
TRIES = 3
"""Times that a question is asked while the server says that it is busy (429, 503)."""
PAUSE_S = 0.5
"""Before the second try; doubled before each further one."""
SETTLE_S = 0.2
"""Pause between two looks at the counters."""
SETTLE_TRIES = 25
DENIED = (401, 403)
"""Answers to one without the right key."""
_BUSY = (429, 503)
LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class ServerInfo:
    """Who a server is.

    Attributes:
        engine: ``vllm`` or ``sglang``.
        version: its release, "" when it does not say.
        model: the name that requests must give.
        max_model_len: longest prompt and output together in tokens, None when it does not say.
        root: what the model was loaded from, "" when it does not say.
    """

    engine: str
    version: str
    model: str
    max_model_len: int | None
    root: str = ""

    def __str__(self) -> str:
        return f"{self.engine} {self.version or '(no version told)'}, {self.model}"


@dataclass
class Server:
    """A server at ``url`` (scheme, host, port; a path such as /v1 is cut). Close it, or use it in a ``with``.

    Raises:
        InputError: the URL is not one of http, or the environment's proxies or certificates cannot be used.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    _client: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.url = base_url(self.url)
        try:
            self._client = httpx.Client(base_url=self.url, **client_options(self.url, self.api_key))
        except (ImportError, OSError, ValueError) as error:
            why = f"the environment's proxy or certificates cannot be used ({type(error).__name__})"
            fix = "look at HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
            raise InputError("--url", self.url, why, fix) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def info(self) -> ServerInfo:
        """Who it is. Raises InputError when nothing answers there, or something that is neither engine."""
        listed = self.json("/v1/models")
        models = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(models, list) or not models or not isinstance(models[0], dict):
            raise InputError(
                "--url", self.url, "its /v1/models lists no model", "give the URL of vLLM or SGLang"
            )
        first = models[0]
        engine, model, longest = (first.get(key) for key in ("owned_by", "id", "max_model_len"))
        if engine not in ("vllm", "sglang"):
            raise InputError(
                "--url",
                self.url,
                f"a server of {str(engine or 'nobody')[:40]} answers there",
                "vLLM and SGLang are known",
            )
        if not isinstance(model, str) or not model:
            raise InputError("--url", self.url, "its /v1/models names no model", "look at the server's log")
        root = first.get("root")
        return ServerInfo(
            engine,
            self._version(engine),
            model,
            longest if type(longest) is int and longest > 0 else None,
            root if isinstance(root, str) else "",
        )

    def _version(self, engine: str) -> str:
        """Its release, "" from a server that does not tell."""
        try:
            told = self.json("/version" if engine == "vllm" else "/server_info")
        except InputError:
            return ""
        version = told.get("version") if isinstance(told, dict) else None
        return version[:60] if isinstance(version, str) else ""

    def metrics(self, engine: str) -> Snapshot:
        """What it counted so far, under the names of ``engine``. Raises InputError when it does not tell."""
        return read_metrics(self.text("/metrics"), engine)

    def settled_metrics(self, engine: str) -> Snapshot:
        """The counters of ``engine`` once two looks show the same: a step is counted after it is sent.

        Where others keep the server busy, the last look after a few seconds. Raises InputError.
        """
        seen = self.metrics(engine)
        for _ in range(SETTLE_TRIES):
            time.sleep(SETTLE_S)
            before, seen = seen, self.metrics(engine)
            if seen == before and not (seen.has("running") and seen.total("running")):
                break
        return seen

    def json(self, path: str) -> Any:
        """The JSON behind a path. Raises InputError."""
        return self._parsed(path, self._ask("GET", path, None))

    def text(self, path: str) -> str:
        """The text behind a path. Raises InputError."""
        return self._ask("GET", path, None).decode("utf-8", "replace")

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that answers ``body`` at ``path``. Raises InputError."""
        return self._parsed(path, self._ask("POST", path, body))

    def _parsed(self, path: str, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            shown = without_key(answer[:400].decode("utf-8", "replace"), self.api_key)[:40]
            fix = "is it vLLM or SGLang?"
            raise InputError("--url", self.url + path, f"answers {shown!r}, not JSON", fix) from None

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        pause_s = PAUSE_S
        for left in reversed(range(TRIES)):
            try:
                with self._client.stream(method, path, json=body) as reply:
                    if reply.status_code == httpx.codes.OK:
                        return self._read(path, reply)
            except httpx.HTTPError as error:
                raise unreachable(self.url + path, error) from None
            if reply.status_code not in _BUSY or not left:
                break
            time.sleep(pause_s)
            pause_s *= 2
        fix = "look at the server's log" if reply.is_server_error else "is it vLLM or SGLang?"
        if reply.status_code in DENIED:
            fix = "--api-key-env names the variable with its key"
        raise InputError(
            "--url", self.url + path, f"answers {reply.status_code} {reply.reason_phrase[:60]}", fix
        )

    def _read(self, path: str, reply: httpx.Response) -> bytes:
        """The whole answer, however slowly it comes. Raises InputError when it is too long, or too late."""
        answer, end_s = bytearray(), time.monotonic() + ANSWER_S
        for piece in reply.iter_bytes():
            answer += piece
            if len(answer) > MOST_ANSWER_BYTES:
                bound = f"answers more than {MOST_ANSWER_BYTES:,} bytes"
                raise InputError("--url", self.url + path, bound, "is it vLLM or SGLang?")
            if time.monotonic() > end_s:
                raise httpx.ReadTimeout("the answer does not end")
        return bytes(answer)


def base_url(url: str) -> str:
    """Scheme, host and port of ``url``. Raises InputError when it has none, or holds a password."""
    example = "for example http://127.0.0.1:8000"
    shown = re.sub(r"//[^/]*@", "//...@", url)
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InputError("--url", shown, f"is no URL ({str(error)[:60]})", example) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InputError("--url", shown, "must begin with http:// or https://", example)
    if parsed.userinfo:
        bound = "a user and a password in it would be shown"
        raise InputError("--url", shown, bound, "--api-key-env names the variable with a key")
    if parsed.port is not None and not 1 <= parsed.port <= 65_535:
        raise InputError("--url", shown, "a port is 1..65535", example)
    return str(parsed.copy_with(path="/", query=None, fragment=None)).rstrip("/")


def without_key(text: str, api_key: str | None) -> str:
    """``text`` of a server without the key, which it may say back."""
    return text.replace(api_key, "(the API key)") if api_key else text


def client_options(url: str, api_key: str | None, answer_s: float = ANSWER_S) -> dict[str, Any]:
    """Keyword arguments of httpx's clients for a server at ``url``."""
    return {
        "timeout": httpx.Timeout(answer_s, connect=CONNECT_S),
        "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
        "trust_env": httpx.URL(url).host not in LOCAL,
        "follow_redirects": False,
    }


def unreachable(url: str, error: httpx.HTTPError) -> InputError:
    """One line for a question that got no answer."""
    if isinstance(error, httpx.TimeoutException):
        return InputError("--url", url, "did not answer in time", "is the server overloaded, or starting?")
    return InputError(
        "--url",
        url,
        f"cannot be reached ({str(error) or type(error).__name__})",
        "start the server, or mend the URL",
    )
