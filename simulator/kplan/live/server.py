"""A running engine behind a URL: who it is, what it counts.

Requests to this machine never go through a proxy of the environment, and redirects are not followed. Every
wait is bounded from its first byte to its last; what goes wrong becomes one line that names the URL.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

import httpx

from kplan.errors import InputError
from kplan.live.apart import run_apart
from kplan.live.metrics import Snapshot, read_metrics

CONNECT_S = 5.0
"""Longest wait for a connection."""
ANSWER_S = 30.0
"""Longest wait for the whole of an answer that needs no generation."""
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
_A_KEY = "(the API key)"
_FEW = 3
"""Letters of a key that tell nobody anything."""
_MOST_SAID = 160
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
    """A server at ``url`` (scheme, host, port; a path such as /v1 is cut).

    Raises:
        InputError: the URL is not one of http, or the environment's proxies or certificates cannot be used.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    _options: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.url = base_url(self.url)
        try:
            self._options = client_options(self.url, self.api_key) | {"base_url": self.url}
            httpx.AsyncClient(**self._options)
        except (ImportError, OSError, ValueError) as error:
            why = f"the environment's proxy or certificates cannot be used ({type(error).__name__})"
            fix = "look at HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
            raise InputError("--url", self.url, why, fix) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held between two questions."""

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
                f"a server of {self._shown(str(engine or 'nobody'), 40)} answers there",
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

    def check_same(self, before: ServerInfo) -> None:
        """Raise InputError unless it is still who it was: one that was restarted may serve something else."""
        now = self.info()
        if now != before:
            bound = f"{now} answers there now, and {before} did before"
            raise InputError("--url", self.url, bound, "run it again against a server that stays up")

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
            shown = self._shown(answer[:400].decode("utf-8", "replace"), 40)
            fix = "is it vLLM or SGLang?"
            raise InputError("--url", self.url + path, f"answers {shown!r}, not JSON", fix) from None

    def _shown(self, text: str, most: int) -> str:
        return without_key(text, self.api_key)[:most]

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        """The answer to a question, asked again while the server says that it is busy. Raises InputError."""
        pause_s = PAUSE_S
        for left in reversed(range(TRIES)):
            reply, answer = run_apart(partial(self._asked, method, path, body))
            if reply.status_code == httpx.codes.OK:
                return answer
            if reply.status_code not in _BUSY or not left:
                break
            time.sleep(pause_s)
            pause_s *= 2
        fix = "look at the server's log" if reply.is_server_error else "is it vLLM or SGLang?"
        if reply.status_code in DENIED:
            fix = "--api-key-env names the variable with its key"
        said = self._shown(reply.reason_phrase, 60)
        if reply.is_redirect:
            said, fix = f"{said}: redirects are not followed", "give the URL of the server itself"
        raise InputError("--url", self.url + path, f"answers {reply.status_code} {said}", fix)

    async def _asked(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[httpx.Response, bytes]:
        """One try, and the answer of status 200, however slowly it comes. Raises InputError."""
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                httpx.AsyncClient(**self._options) as client,
                client.stream(method, path, json=body) as reply,
            ):
                whole = reply.status_code == httpx.codes.OK
                return reply, await self._read(path, reply) if whole else b""
        except TimeoutError:
            raise unreachable(self.url + path, httpx.ReadTimeout("the answer does not end")) from None
        except httpx.HTTPError as error:
            raise unreachable(self.url + path, error) from None

    async def _read(self, path: str, reply: httpx.Response) -> bytes:
        """The whole answer. Raises InputError when it is too long, or in a form that was not asked for."""
        if packed := packing(reply):
            bound = f"answers as {self._shown(packed, 40)}, which was not asked for"
            raise InputError("--url", self.url + path, bound, "is it vLLM or SGLang?")
        answer = bytearray()
        async for piece in reply.aiter_raw():
            answer += piece
            if len(answer) > MOST_ANSWER_BYTES:
                bound = f"answers more than {MOST_ANSWER_BYTES:,} bytes"
                raise InputError("--url", self.url + path, bound, "is it vLLM or SGLang?")
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
    """``text`` of a server without the key, which it may say back, nor a beginning of it where it was cut."""
    if not api_key:
        return text
    text = text.replace(api_key, _A_KEY)
    cut = next((n for n in range(len(api_key) - 1, _FEW, -1) if text.endswith(api_key[:n])), 0)
    return text[: len(text) - cut] + _A_KEY if cut else text


def client_options(url: str, api_key: str | None, answer_s: float = ANSWER_S) -> dict[str, Any]:
    """Keyword arguments of httpx's clients for a server at ``url``.

    Raises:
        OSError: the certificates that the environment names cannot be read.
    """
    # Packed answers are not asked for: a small one may unpack to all the memory there is.
    own = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return {
        "timeout": httpx.Timeout(answer_s, connect=CONNECT_S),
        "headers": {"Accept-Encoding": "identity", **own},
        "trust_env": httpx.URL(url).host not in LOCAL,
        "verify": httpx.create_ssl_context(),  # of SSL_CERT_FILE, for this machine's servers too
        "follow_redirects": False,
    }


def packing(reply: httpx.Response) -> str:
    """How an answer is packed (gzip), "" where it is not."""
    told = reply.headers.get("Content-Encoding", "")
    return "" if told.strip().casefold() in ("", "identity") else told


def unreachable(url: str, error: httpx.HTTPError) -> InputError:
    """One line for a question that got no answer."""
    if isinstance(error, httpx.TimeoutException):
        return InputError("--url", url, "did not answer in time", "is the server overloaded, or starting?")
    said = str(error) or type(error).__name__
    fix = "start the server, or mend the URL"
    if "CERTIFICATE_VERIFY_FAILED" in said:
        fix = "name its certificate in SSL_CERT_FILE"
    return InputError("--url", url, f"cannot be reached ({said[:_MOST_SAID]})", fix)
