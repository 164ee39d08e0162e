"""A running engine behind a URL: who it is, what it counts.

Requests to this machine never go through a proxy of the environment. Every wait is bounded; what goes wrong
becomes one line that names the URL.
"""

from __future__ import annotations

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
TRIES = 3
"""Times that a question is asked while the server says that it is busy (429, 503)."""
PAUSE_S = 0.5
"""Before the second try; doubled before each further one."""
SETTLE_S = 0.2
"""Pause between two looks at the counters."""
SETTLE_TRIES = 25
LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class ServerInfo:
    """Who a server is.

    Attributes:
        engine: ``vllm`` or ``sglang``.
        version: its release, "" when it does not say.
        model: the name that requests must give.
        max_model_len: longest prompt and output together in tokens, None when it does not say.
    """

    engine: str
    version: str
    model: str
    max_model_len: int | None

    def __str__(self) -> str:
        return f"{self.engine} {self.version or '(no version told)'}, {self.model}"


@dataclass
class Server:
    """A server at ``url`` (scheme, host, port; a path such as /v1 is cut). Close it, or use it in a ``with``.

    Raises:
        InputError: the URL is not one of http.
    """

    url: str
    api_key: str | None = None
    _client: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.url = base_url(self.url)
        self._client = httpx.Client(base_url=self.url, **client_options(self.url, self.api_key))

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
        engine = str(first.get("owned_by", ""))
        if engine not in ("vllm", "sglang"):
            raise InputError(
                "--url",
                self.url,
                f"a server of {engine or 'nobody'} answers there",
                "vLLM and SGLang are known",
            )
        longest = first.get("max_model_len")
        return ServerInfo(
            engine,
            self._version(engine),
            str(first.get("id", "")),
            longest if isinstance(longest, int) else None,
        )

    def _version(self, engine: str) -> str:
        """Its release, "" from a server that does not tell."""
        try:
            told = self.json("/version" if engine == "vllm" else "/server_info")
        except InputError:
            return ""
        return str(told.get("version", "")) if isinstance(told, dict) else ""

    def metrics(self, engine: str) -> Snapshot:
        """What it counted so far. Raises InputError when it does not tell."""
        return read_metrics(self.text("/metrics"), engine)

    def settled_metrics(self, engine: str) -> Snapshot:
        """The counters once two looks show the same: engines count a step a moment after they send it.

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
        return _json(self.url + path, self._get(path))

    def text(self, path: str) -> str:
        """The text behind a path. Raises InputError."""
        return self._get(path).text

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that answers ``body``. Raises InputError."""
        return _json(self.url + path, self._ask("POST", path, body))

    def _get(self, path: str) -> httpx.Response:
        return self._ask("GET", path, None)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        pause_s = PAUSE_S
        for left in reversed(range(TRIES)):
            try:
                reply = self._client.request(method, path, json=body)
            except httpx.HTTPError as error:
                raise unreachable(self.url + path, error) from None
            if reply.status_code in (429, 503) and left:
                time.sleep(pause_s)
                pause_s *= 2
                continue
            break
        if reply.status_code != httpx.codes.OK:
            raise InputError(
                "--url",
                self.url + path,
                f"answers {reply.status_code} {reply.reason_phrase}",
                "look at the server's log" if reply.is_server_error else "is it vLLM or SGLang?",
            )
        return reply


def _json(url: str, reply: httpx.Response) -> Any:
    try:
        return reply.json()
    except ValueError:
        raise InputError(
            "--url", url, f"answers {reply.text[:40]!r}, not JSON", "is it vLLM or SGLang?"
        ) from None


def base_url(url: str) -> str:
    """Scheme, host and port of ``url``. Raises InputError when it has none."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InputError("--url", url, f"is no URL ({error})", "for example http://127.0.0.1:8000") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InputError(
            "--url", url, "must begin with http:// or https://", "for example http://127.0.0.1:8000"
        )
    return str(parsed.copy_with(path="/", query=None, fragment=None)).rstrip("/")


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
