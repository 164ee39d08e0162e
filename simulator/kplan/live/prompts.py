"""Prompts to drive a server with: files of three kinds, or tokens drawn at random at a workload's lengths.

- **JSONL**: an object a line with ``prompt``, ``messages`` or ``prompt_token_ids``, and perhaps
  ``max_tokens`` (or ``output_tokens``).
- **JSON**: ShareGPT's list of objects with ``conversations``; the first turn is asked, as a chat.
- **text**: a prompt a line.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kplan.acceptance.columns import Row, integers
from kplan.acceptance.jsonl import parse
from kplan.errors import InputError
from kplan.files import check_readable
from kplan.live.server import Server
from kplan.provenance import digest, file_digest
from kplan.rng import stream
from kplan.workload import Workload

MOST_BYTES = 2**30
"""Largest file of prompts."""
MOST_LINE_BYTES = 2**24
"""Longest line of one; a prompt of a million tokens takes 6 MB."""
MOST_DRAWN = 20_000
"""Prompts that are drawn at random."""
MOST_PROMPTS = 1_000_000
"""Prompts that are read of a file."""
MOST_TOKENS = 1_000_000
"""Longest output that is asked for."""
_KEYS = ("messages", "prompt_token_ids", "prompt")
_MAX_ID = 2**31 - 1


@dataclass(frozen=True)
class Prompt:
    """One request to make: text, token ids or messages, exactly one of them.

    Attributes:
        index: place in its file, from 0.
        max_tokens: longest output; None: as for all.
    """

    index: int
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Prompts:
    """Prompts with where they come from.

    Attributes:
        prompts: in the file's order.
        source: the file's name, or the workload's.
        digest: hash of the file, or of what they were drawn from.
        synthetic: tokens drawn at random, whose acceptance says nothing of text.
    """

    prompts: tuple[Prompt, ...]
    source: str
    digest: str
    synthetic: bool = False


def read_prompts(path: Path, most: int | None = None) -> Prompts:
    """The first ``most`` prompts of a file.

    Raises:
        InputError: one line with file and row: unreadable, too large, an empty prompt, an object without one.
    """
    try:
        check_readable("--prompts", path, MOST_BYTES)
        with path.open("rb") as file:
            head = file.read(4096).removeprefix(BOM_UTF8).lstrip()[:1]
        found = list(_limited(_sharegpt(path) if head == b"[" else _lines(path, head == b"{"), most))
        hashed = file_digest(path)
    except OSError as error:
        raise InputError(
            "--prompts", str(path), error.strerror or "cannot be read", "check the path"
        ) from error
    if not found:
        raise InputError("--prompts", str(path), "it holds no prompt", "write one a line")
    return Prompts(tuple(found), path.name, hashed)


def _limited(prompts: Iterator[Prompt], most: int | None) -> Iterator[Prompt]:
    limit = MOST_PROMPTS if most is None else most
    for prompt in prompts:
        if prompt.index >= limit:
            return
        yield prompt


def _lines(path: Path, objects: bool) -> Iterator[Prompt]:
    index = 0
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES + 1), b""), start=1):
            where = Row(path.name, number)
            if number == 1:
                line = line.removeprefix(BOM_UTF8)
            if len(line) > MOST_LINE_BYTES:
                bound = f"{MOST_LINE_BYTES:,} bytes a line are accepted"
                raise InputError(where.at("1"), "a longer line", bound, "write one prompt a line")
            if line.strip():
                yield _object(parse(line, where), where, index) if objects else _text(line, where, index)
                index += 1


def _text(line: bytes, where: Row, index: int) -> Prompt:
    try:
        return Prompt(index, text=line.decode("utf-8").strip())
    except UnicodeDecodeError as error:
        raise InputError(where.at(f"byte {error.start + 1}"), "not UTF-8", "text is needed") from None


def _object(record: dict[str, Any], where: Row, index: int) -> Prompt:
    key = next((key for key in _KEYS if record.get(key) is not None), None)
    if key is None:
        has = f"it has {', '.join(map(str, record))}"[:120]
        raise InputError(where.at("prompt"), "no such key", has, f"one of {', '.join(_KEYS)} is needed")
    most = next((record[k] for k in ("max_tokens", "output_tokens") if record.get(k) is not None), None)
    if most is not None and (type(most) is not int or not 1 <= most <= MOST_TOKENS):
        raise InputError(where.at("max_tokens"), str(most)[:40], f"an integer in 1..{MOST_TOKENS} is needed")
    given = record[key]
    if key == "prompt_token_ids":
        ids = tuple(integers(given, where, key, 0, _MAX_ID).tolist())
        return Prompt(index, token_ids=ids, max_tokens=most)
    if key == "messages":
        return Prompt(index, messages=_messages(given, where), max_tokens=most)
    if not isinstance(given, str) or not given.strip():
        raise InputError(where.at(key), ascii(given)[:40], "a text is needed", "drop the row")
    _check_sendable(given, where.at(key))
    return Prompt(index, text=given, max_tokens=most)


def _check_sendable(given: Any, where: str) -> None:
    """Raise InputError for what Python reads and no server does: NaN, half a UTF-16 pair."""
    try:
        json.dumps(given, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(where, ascii(given)[:40], f"cannot be sent ({str(error)[:60]})", "mend it") from None


def _messages(given: Any, where: Row) -> tuple[dict[str, Any], ...]:
    whole = isinstance(given, list) and given
    if not whole or any(not isinstance(m, dict) or not {"role", "content"} <= m.keys() for m in given):
        bound = "a list of objects with role and content is needed"
        raise InputError(where.at("messages"), ascii(given)[:40], bound)
    _check_sendable(given, where.at("messages"))
    return tuple(given)


def _sharegpt(path: Path) -> Iterator[Prompt]:
    try:
        listed = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError("--prompts", str(path), f"no JSON ({error})"[:120], "copy it again") from None
    index = 0
    for number, record in enumerate(listed if isinstance(listed, list) else [], start=1):
        turns = record.get("conversations") if isinstance(record, dict) else None
        if not isinstance(turns, list):
            raise InputError(
                Row(path.name, number).at("conversations"), "no such list", "ShareGPT's form is needed"
            )
        asked = _first_turn(turns)
        if asked:
            _check_sendable(asked, Row(path.name, number).at("conversations"))
            yield Prompt(index, messages=({"role": "user", "content": asked},))
            index += 1


def _first_turn(turns: list[Any]) -> str:
    """What the user asks first, "" in a conversation that begins with the model's turn."""
    first = turns[0] if turns and isinstance(turns[0], dict) else {}
    asked = first.get("value") if first.get("from") in ("human", "user") else None
    return asked.strip() if isinstance(asked, str) else ""


def as_chat(prompts: Prompts) -> Prompts:
    """Every text prompt as what a user says in a chat."""
    asked = tuple(
        p if p.text is None else replace(p, text=None, messages=({"role": "user", "content": p.text},))
        for p in prompts.prompts
    )
    return replace(prompts, prompts=asked)


def tokenize(server: Server, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts as token ids, by the server's own tokenizer and chat template. Raises InputError."""
    return [p if p.token_ids is not None else _tokenized(server, p) for p in prompts]


def _tokenized(server: Server, prompt: Prompt) -> Prompt:
    asked: dict[str, Any] = (
        {"prompt": prompt.text} if prompt.messages is None else {"messages": list(prompt.messages)}
    )
    told = server.post("/tokenize", asked)
    ids = told.get("tokens") if isinstance(told, dict) else None
    if not isinstance(ids, list) or not ids or any(type(i) is not int or i < 0 for i in ids):
        raise InputError(
            "--url", f"{server.url}/tokenize", "answers no list of tokens", "is it vLLM or SGLang?"
        )
    return Prompt(prompt.index, token_ids=tuple(ids), max_tokens=prompt.max_tokens)


_ANY_TEXT = (
    "The quick brown fox jumps over the lazy dog while 12 of 34 small boats, painted red and green, leave "
    "the harbour at noon; nobody asks why (or when) they will come back, since water is patient."
)


def draw_prompts(server: Server, workload: Workload, requests: int, seed: int) -> Prompts:
    """Prompts of random tokens at a workload's lengths of prompt and output.

    The tokens are those of a sentence in the server's own tokenizer, so every model knows them; their order
    is random, so no two prompts share a prefix for long.

    Raises:
        InputError: the server does not tokenize, or more than MOST_DRAWN are asked for.
    """
    if requests > MOST_DRAWN:
        raise InputError("--requests", requests, f"at most {MOST_DRAWN} are drawn", "ask for fewer")
    prompt_len, output_len = workload.lengths.sample(seed, requests)
    drawn = random_prompts(server, prompt_len.tolist(), output_len.tolist(), seed)
    hashed = digest({"workload": workload.name, "tokens": [p.token_ids for p in drawn]})
    return Prompts(drawn, f"workload {workload.name}, random tokens", hashed, synthetic=True)


def random_prompts(
    server: Server, prompt_len: Sequence[int], output_len: Sequence[int], seed: int
) -> tuple[Prompt, ...]:
    """Prompts of random tokens at given lengths of prompt and output; see :func:`draw_prompts`."""
    (known,) = tokenize(server, [Prompt(0, text=_ANY_TEXT)])
    rng = stream(seed, "live", "prompts")
    return tuple(
        Prompt(i, token_ids=tuple(rng.choice(known.token_ids or (), size=int(p)).tolist()), max_tokens=int(o))
        for i, (p, o) in enumerate(zip(prompt_len, output_len, strict=True))
    )
