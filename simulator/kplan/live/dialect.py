"""What a request and its streamed answer look like to vLLM and to SGLang.

- **vLLM**: ``/v1/completions`` (``/v1/chat/completions`` for messages) with ``return_token_ids``: each chunk
  lists its tokens; the last event has ``usage`` and, where asked for, ``metrics.speculative_decoding``.
- **SGLang**: ``/generate`` with ``input_ids``: each chunk lists all tokens so far (or its own, by a flag of
  the server); ``meta_info`` grows with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

from kplan.acceptance.trace import MAX_K
from kplan.errors import InputError
from kplan.live.prompts import MOST_TOKENS, Prompt

MOST_TEMPERATURE = 100.0
MOST_COUNT = 2**31 - 1
"""Largest count, and token id, that a server may tell."""


@dataclass(frozen=True)
class Sampling:
    """How outputs are drawn.

    Attributes:
        max_tokens: longest output, where the prompt does not say its own.
        temperature: 0 is greedy; above MOST_TEMPERATURE nothing is left of the model.
        seed: of the server's draws; None leaves it to the server.
        ignore_eos: go on to ``max_tokens`` whatever the model says.
    """

    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.max_tokens <= MOST_TOKENS:
            raise InputError("--max-tokens", self.max_tokens, f"1..{MOST_TOKENS} is accepted")
        if not 0.0 <= self.temperature <= MOST_TEMPERATURE:
            bound = f"0..{MOST_TEMPERATURE:g} is accepted"
            raise InputError("--temperature", self.temperature, bound, "0 is greedy")


class StreamError(Exception):
    """An answer that cannot be used: the server said so, or broke off."""


@dataclass
class Stream:
    """What of one answer has arrived.

    Attributes:
        prompt_token_ids: of the prompt, as the server has them; empty when it does not tell.
        token_ids: of the output.
        chunks: tokens of each chunk.
        chunk_s: arrival of each, seconds by the caller's clock.
        finish_reason: why it ended, "" before it did.
        told: the engine's own words on the request, as they are to be kept.
    """

    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    chunk_s: list[float] = field(default_factory=list)
    finish_reason: str = ""
    told: dict[str, Any] = field(default_factory=dict)

    def grow(self, tokens: list[int], now_s: float) -> None:
        """Take a chunk in; one without tokens is none."""
        if tokens:
            self.token_ids += tokens
            self.chunks.append(len(tokens))
            self.chunk_s.append(now_s)


class Dialect(Protocol):
    """How one engine is asked."""

    def request(self, prompt: Prompt, sampling: Sampling) -> tuple[str, dict[str, Any]]:
        """Path and body of a streamed request."""
        ...

    def feed(self, stream: Stream, event: Mapping[str, Any], now_s: float) -> None:
        """Take one event in. Raises StreamError when it is an error, or lacks what is needed."""
        ...

    def counts(self, stream: Stream) -> tuple[int, int]:
        """Tokens of prompt and output by the engine's own count. Raises StreamError when it gave none."""
        ...


@dataclass(frozen=True)
class Vllm:
    """vLLM, serving ``model``."""

    model: str

    def request(self, prompt: Prompt, sampling: Sampling) -> tuple[str, dict[str, Any]]:
        """See :class:`Dialect`."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": prompt.max_tokens or sampling.max_tokens,
            "temperature": sampling.temperature,
            "ignore_eos": sampling.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if prompt.messages is not None:
            return "/v1/chat/completions", body | {"messages": list(prompt.messages)}
        given = prompt.text if prompt.token_ids is None else list(prompt.token_ids)
        return "/v1/completions", body | {"prompt": given}

    def feed(self, stream: Stream, event: Mapping[str, Any], now_s: float) -> None:
        """See :class:`Dialect`."""
        _raise_told(event)
        stream.told.setdefault("id", event.get("id"))
        _keep_prompt(stream, event)
        for choice in _objects(event.get("choices")):
            _keep_prompt(stream, choice)
            tokens = choice.get("token_ids")
            if tokens is None and (choice.get("text") or _content(choice)):
                raise StreamError("its chunks carry no token_ids (vLLM 0.32 has return_token_ids)")
            stream.grow(_ids(tokens or []), now_s)
            stream.finish_reason = str(choice.get("finish_reason") or stream.finish_reason)
        for key in ("usage", "metrics"):
            if isinstance(event.get(key), dict):
                stream.told[key] = event[key]
                check_told(stream.told)

    def counts(self, stream: Stream) -> tuple[int, int]:
        """See :class:`Dialect`."""
        usage = stream.told.get("usage")
        if not isinstance(usage, dict):
            raise StreamError("the stream ended before its usage")
        return _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")


@dataclass(frozen=True)
class Sglang:
    """SGLang; its prompts must be token ids (see kplan.live.prompts.tokenize)."""

    def request(self, prompt: Prompt, sampling: Sampling) -> tuple[str, dict[str, Any]]:
        """See :class:`Dialect`. Raises InputError for a prompt that is not tokens."""
        if prompt.token_ids is None:
            raise InputError(f"prompt {prompt.index + 1}", "text", "SGLang is given token ids")
        drawn: dict[str, Any] = {
            "max_new_tokens": prompt.max_tokens or sampling.max_tokens,
            "temperature": sampling.temperature,
            "ignore_eos": sampling.ignore_eos,
        }
        if sampling.seed is not None:
            drawn["sampling_seed"] = sampling.seed
        return "/generate", {"input_ids": list(prompt.token_ids), "sampling_params": drawn, "stream": True}

    def feed(self, stream: Stream, event: Mapping[str, Any], now_s: float) -> None:
        """See :class:`Dialect`."""
        _raise_told(event)
        told = event.get("meta_info")
        if not isinstance(told, dict):
            raise StreamError("an event without meta_info")
        ids, grown = _ids(event.get("output_ids") or []), _count(told, "completion_tokens")
        known = len(stream.token_ids)
        if len(ids) == grown:  # all so far; a server with incremental output sends the new ones alone
            ids = ids[known:]
        elif known + len(ids) != grown:
            raise StreamError(f"{len(ids)} output_ids after {known}, and completion_tokens {grown}")
        stream.grow(ids, now_s)
        reason = told.get("finish_reason")
        if isinstance(reason, dict):
            stream.finish_reason = str(reason.get("type"))
            if stream.finish_reason == "abort":
                raise StreamError(f"the server gave it up: {str(reason.get('message'))[:120]}")
        stream.told["meta_info"] = {
            key: told[key]
            for key in told
            if key in ("id", "prompt_tokens", "completion_tokens", "cached_tokens") or key.startswith("spec_")
        }
        check_told(stream.told)

    def counts(self, stream: Stream) -> tuple[int, int]:
        """See :class:`Dialect`."""
        told = stream.told.get("meta_info")
        if not isinstance(told, dict) or not stream.finish_reason:
            raise StreamError("the stream ended before its finish_reason")
        return _count(told, "prompt_tokens"), _count(told, "completion_tokens")


def dialect_of(engine: str, model: str) -> Dialect:
    """The dialect of ``vllm`` or ``sglang``."""
    return Vllm(model) if engine == "vllm" else Sglang()


def _raise_told(event: Mapping[str, Any]) -> None:
    error = event.get("error")
    if error:
        raise StreamError(str(error.get("message") if isinstance(error, dict) else error)[:160])


def _objects(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _content(choice: Mapping[str, Any]) -> Any:
    delta = choice.get("delta")
    return delta.get("content") if isinstance(delta, dict) else None


def _keep_prompt(stream: Stream, told: Mapping[str, Any]) -> None:
    if told.get("prompt_token_ids"):
        stream.prompt_token_ids = _ids(told["prompt_token_ids"])


def _ids(values: Any) -> list[int]:
    if not isinstance(values, list) or not all(map(_is_count, values)):
        raise StreamError(f"{str(values)[:40]} is no list of token ids")
    return values


def _is_count(value: Any, most: int = MOST_COUNT) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def check_told(words: Mapping[str, Any]) -> None:
    """Raise StreamError unless what an engine tells of a request's acceptance is what it says to be.

    Args:
        words: with vLLM's ``metrics`` or SGLang's ``meta_info``.
    """
    sglang = words.get("meta_info")
    if isinstance(sglang, dict):
        _check_counts(sglang, "spec_correct_drafts_histogram", MOST_COUNT, MAX_K + 1)
    told = (words.get("metrics") or {}).get("speculative_decoding")
    if told is None:
        return
    if not isinstance(told, dict):
        raise StreamError(f"speculative_decoding is {str(told)[:40]}, and must be an object")
    for key in ("num_spec_steps", "num_draft_tokens"):
        _count(told, key)
    _check_counts(told, "acceptance_histogram", MOST_COUNT, MAX_K + 1)
    for key in ("per_step_accepted", "per_step_drafted"):
        _check_counts(told, key, MAX_K, MOST_TOKENS)


def _check_counts(told: Mapping[str, Any], key: str, most: int, longest: int) -> None:
    """Raise StreamError unless there is nothing, or a list of at most ``longest`` counts up to ``most``."""
    values = told.get(key)
    if values is None:
        return
    if not isinstance(values, list) or len(values) > longest or not all(_is_count(v, most) for v in values):
        raise StreamError(f"{key} is {str(values)[:40]}, and must be a list of counts up to {most}")


def _count(told: Mapping[str, Any], key: str) -> int:
    value = told.get(key)
    if not _is_count(value):
        raise StreamError(f"{key} is {str(value)[:40]}, and must be a count")
    return value
