"""A running config as options by name: a YAML file, or a command line that was pasted."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kplan.errors import InputError
from kplan.export.check import Case
from kplan.export.current import CurrentConfig
from kplan.export.engines import SGLANG, VLLM
from kplan.export.read_sglang import read_sglang
from kplan.export.read_vllm import read_vllm
from kplan.files import read_text
from kplan.plainyaml import MOST_BYTES, load_yaml

MAX_BYTES = 1_000_000
"""Longest command line that is read."""

_SHORT = {
    "-tp": "tensor-parallel-size",
    "-dp": "data-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-sc": "speculative-config",
    "-q": "quantization",
}
_OF_VLLM = frozenset(
    (
        *("model", "max-num-seqs", "max-num-batched-tokens", "max-model-len", "speculative-config"),
        *("spec-method", "spec-model", "spec-tokens", "gpu-memory-utilization", "data-parallel-size"),
    )
)
_OF_SGLANG = frozenset(
    (
        *("model-path", "tp-size", "dp-size", "max-running-requests", "mem-fraction-static"),
        *("context-length", "speculative-algorithm", "speculative-num-steps", "chunked-prefill-size"),
    )
)


@dataclass(frozen=True)
class Source:
    """Options as they were given, and the start that they are of.

    Attributes:
        engine: ``vllm`` or ``sglang``.
        values: option -> value, by the names as written.
        in_file: those of them that stand in a YAML file.
        case: the same for an engine's own parser.
    """

    engine: str
    values: Mapping[str, Any]
    in_file: frozenset[str]
    case: Case

    def read(self) -> CurrentConfig:
        """What the engine does with it."""
        reader = read_vllm if self.engine == VLLM.name else read_sglang
        return reader(self.values, self.in_file, self.case.folder)


def source_of_file(path: Path, engine: str | None) -> Source:
    """The options of a config file.

    Args:
        engine: None: the one whose option names it has.

    Raises:
        InputError: unreadable, too large, no YAML mapping, or of an engine that cannot be told.
    """
    values = _yaml(path)
    return Source(
        engine or _engine_of(values, str(path)), values, frozenset(values), Case.of(path.absolute())
    )


def source_of_command(command: str, engine: str | None) -> Source:
    """The options of ``vllm serve MODEL --...`` or ``python -m sglang.launch_server --...``.

    Args:
        command: the whole line.
        engine: whose options these are; None: as the line begins.

    Raises:
        InputError: too long, unbalanced quotes, no such start, or a ``--config`` that cannot be read.
    """
    if len(command) > MAX_BYTES:
        raise InputError("--command", f"{len(command)} characters", f"must be at most {MAX_BYTES}", "cut it")
    try:
        words = shlex.split(command.replace("\\\n", " "))
    except ValueError as error:
        shown = without_secrets(command)[:60]
        raise InputError("--command", shown, str(error).lower(), "quote it as for a shell") from None
    found, argv = _start(words, command)
    engine = engine or found
    values = _options(argv, engine)
    in_file: frozenset[str] = frozenset()
    if isinstance(config := values.pop("config", None), str):
        written = _yaml(Path(config))
        in_file = frozenset(written) - set(values)
        values = written | values
    return Source(engine, values, in_file, Case("the command line", tuple(argv), Path.cwd()))


def _yaml(path: Path) -> dict[str, Any]:
    if path.suffix not in (".yaml", ".yml"):
        raise InputError("config", str(path), "engines read .yaml and .yml alone", "rename it")
    text = read_text("config", path, MOST_BYTES)
    try:
        values = load_yaml(text)
    except yaml.YAMLError as error:
        fault = without_secrets(f"is not YAML: {error}")
        raise InputError("config", str(path), fault, "mend that line") from None
    if not isinstance(values, dict) or not values:
        raise InputError("config", str(path), "must be a mapping of options to values", "see kplan export")
    return {str(key): value for key, value in values.items()}


def without_secrets(text: str) -> str:
    """``text`` without what follows the name of a key, a token, a password."""
    return re.sub(r"(?i)((?:key|token|secret|password)\b[\"']?[:=\s]+)\S+", r"\1...", text)


def _engine_of(values: Mapping[str, Any], where: str) -> str:
    names = {name.replace("_", "-") for name in values}
    counts = {VLLM.name: len(names & _OF_VLLM), SGLANG.name: len(names & _OF_SGLANG)}
    if counts[VLLM.name] == counts[SGLANG.name]:
        raise InputError("config", where, "does not tell its engine", "say --engine vllm or --engine sglang")
    return max(counts, key=lambda name: counts[name])


def _start(words: list[str], command: str) -> tuple[str, list[str]]:
    """(engine, its arguments) of a shell command."""
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        if word.rpartition("/")[2] in (VLLM.name, SGLANG.name) and following == "serve":
            return word.rpartition("/")[2], words[at + 2 :]
        if word == "vllm.entrypoints.openai.api_server":
            return VLLM.name, words[at + 1 :]
        if word == "sglang.launch_server":
            return SGLANG.name, words[at + 1 :]
    raise InputError(
        "--command", without_secrets(command)[:60], "starts no engine that is known",
        "paste `vllm serve MODEL --...` or `python -m sglang.launch_server --...`",
    )  # fmt: skip


def _options(argv: list[str], engine: str) -> dict[str, Any]:
    """Options of a command line; one without a value is true, several values are a list."""
    values: dict[str, Any] = {}
    name = ""
    words = [word for one in argv for word in _parted(one)]
    for at, word in enumerate(words):
        if word.startswith("--") or word in _SHORT:
            name = _SHORT.get(word, word.removeprefix("--"))
            _put(values, name, True, engine)
        elif not name:
            if at == 0:
                values["model"] = word
        else:
            before = values.get(name.partition(".")[0] if engine == VLLM.name else name)
            several = [*before, word] if isinstance(before, list) else [before, word]
            _put(values, name, word if before is True or "." in name else several, engine)
    return values


def _parted(word: str) -> list[str]:
    """``--key=value`` in two."""
    match = re.fullmatch(r"(--[^=\s]+|-[a-z]{1,3})=(.*)", word, re.DOTALL)
    return [match[1], match[2]] if match else [word]


def _put(values: dict[str, Any], name: str, value: Any, engine: str) -> None:
    """Set an option; vLLM's ``--speculative-config.method x`` sets a key of a mapping."""
    head, dot, key = name.partition(".")
    if engine != VLLM.name or not dot:
        values[name] = value
        return
    if isinstance(value, str):
        with suppress(json.JSONDecodeError, RecursionError):  # a word stays one
            value = json.loads(value)
    inner = values.get(head)
    values[head] = {**(inner if isinstance(inner, dict) else {}), key: value}
