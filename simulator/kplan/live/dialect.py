"""What a request and its streamed answer look like to vLLM and to SGLang.

What an answer contradicts is an error: the tokens of another request, more of them than were asked for, words
on acceptance that do not add up. Of its words only those that kplan reads are kept.

- **vLLM**: ``/v1/completions`` (``/v1/chat/completions`` for messages) with ``return_token_ids``: each chunk
  lists its tokens; the last event has ``usage`` and, where asked for, ``metrics.speculative_decoding``.
- **SGLang**: ``/generate`` with ``input_ids``: each chunk lists all tokens so far (or its own, by a flag of
  the server); ``meta_info`` grows with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kplan.errors import InputError
from kplan.live.prompts import MOST_TOKENS, Prompt
from kplan.live.told import ACCEPTANCE, StreamError, check_told, count, is_count

MOST_TEMPERATURE = 100.0
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
_META_INFO = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "spec_num_correct_drafts",
    "spec_num_proposed_drafts",
    "spec_verify_ct",
    "spec_correct_drafts_histogram",
)
_GIVEN_UP = ("abort", "error")
_MOST_NAME, _MOST_SAID = 200, 1000


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


@dataclass
class Stream:
    """What of one answer has arrived.

    Attributes:
        most: tokens that were asked for.
        given: of the prompt, where it was sent as tokens.
        prompt_token_ids: of the prompt, as the server has them; empty when it does not tell.
        token_ids: of the output.
        chunks: tokens of each chunk.
        chunk_s: arrival of each, seconds by the caller's clock.
        finish_reason: why it ended, "" before it did.
        told: the engine's own words on the request, as they are to be kept.
    """

    most: int = MOST_TOKENS
    given: tuple[int, ...] | None = None
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    chunk_s: list[float] = field(default_factory=list)
    finish_reason: str = ""
    told: dict[str, Any] = field(default_factory=dict)

    def grow(self, tokens: list[int], now_s: float) -> None:
        """Take a chunk in; one without tokens is none. Raises StreamError for one that cannot be."""
        if not tokens:
            return
        if self.finish_reason:
            raise StreamError("sent tokens after its end: its chunks are out of order")
        if len(self.token_ids) + len(tokens) > self.most:
            raise StreamError(f"sent more than the {self.most} tokens that were asked for")
        self.token_ids += tokens
        self.chunks.append(len(tokens))
        self.chunk_s.append(now_s)

    def end(self, reason: Any) -> None:
        """Note why it ended. Raises StreamError where the server gave it up."""
        if str(reason) in _GIVEN_UP:
            raise StreamError(f"the server gave it up: finish_reason {reason}")
        self.finish_reason = str(reason)[:_MOST_NAME]

    def name(self, told: Any) -> None:
        """Note the request's id. Raises StreamError when it is another than before."""
        if not isinstance(told, str):
            return
        if self.told.setdefault("id", told[:_MOST_NAME]) != told[:_MOST_NAME]:
            raise StreamError(f"sent a chunk of another request ({told[:40]}, not {self.told['id'][:40]})")

    def prompt(self, told: Mapping[str, Any]) -> None:
        """Note the prompt's tokens. Raises StreamError when they are not those that were sent."""
        ids = told.get("prompt_token_ids")
        if not ids:
            return
        ids = _ids(ids)
        sent = self.given or tuple(self.prompt_token_ids)
        if sent and tuple(ids) != sent:
            raise StreamError(
                "answers another request: the tokens of its prompt are not those that were sent"
            )
        self.prompt_token_ids = ids


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
        stream.name(event.get("id"))
        if (model := event.get("model")) not in (None, self.model):
            raise StreamError(f"is of the model {str(model)[:60]}, and {self.model[:60]} was asked")
        stream.prompt(event)
        for choice in _objects(event.get("choices")):
            if choice.get("index") not in (None, 0):
                raise StreamError(f"has a choice {str(choice['index'])[:20]}, and one was asked for")
            stream.prompt(choice)
            tokens = choice.get("token_ids")
            if tokens is None and (choice.get("text") or _content(choice)):
                raise StreamError("its chunks carry no token_ids (vLLM 0.32 has return_token_ids)")
            stream.grow(_ids(tokens or []), now_s)
            if choice.get("finish_reason"):
                stream.end(choice["finish_reason"])
        if isinstance(usage := event.get("usage"), dict):
            stream.told["usage"] = {key: usage[key] for key in _USAGE if key in usage}
        if isinstance(metrics := event.get("metrics"), dict):
            told = metrics.get("speculative_decoding")
            kept = {key: told[key] for key in ACCEPTANCE if key in told} if isinstance(told, dict) else told
            stream.told["metrics"] = {"speculative_decoding": kept}
            check_told(stream.told)

    def counts(self, stream: Stream) -> tuple[int, int]:
        """See :class:`Dialect`."""
        usage = stream.told.get("usage")
        if not isinstance(usage, dict):
            raise StreamError("the stream ended before its usage")
        return _counts(stream, usage)


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
        stream.name(told.get("id"))
        ids, grown = _ids(event.get("output_ids") or []), count(told, "completion_tokens")
        known = len(stream.token_ids)
        if len(ids) == grown:  # all so far; a server with incremental output sends the new ones alone
            if ids[:known] != stream.token_ids:
                raise StreamError(f"sent {grown} output_ids that do not go on from {known}: out of order")
            ids = ids[known:]
        elif known + len(ids) != grown:
            raise StreamError(f"{len(ids)} output_ids after {known}, and completion_tokens {grown}")
        stream.grow(ids, now_s)
        reason = told.get("finish_reason")
        if isinstance(reason, dict):
            if reason.get("type") in _GIVEN_UP and reason.get("message"):
                raise StreamError(f"the server gave it up: {str(reason['message'])[:_MOST_SAID]}")
            stream.end(reason.get("type"))
        own = {"id": stream.told["id"]} if "id" in stream.told else {}
        stream.told["meta_info"] = own | {key: told[key] for key in _META_INFO if key in told}
        check_told(stream.told)

    def counts(self, stream: Stream) -> tuple[int, int]:
        """See :class:`Dialect`."""
        told = stream.told.get("meta_info")
        if not isinstance(told, dict) or not stream.finish_reason:
            raise StreamError("the stream ended before its finish_reason")
        return _counts(stream, told)


def dialect_of(engine: str, model: str) -> Dialect:
    """The dialect of ``vllm`` or ``sglang``."""
    return Vllm(model) if engine == "vllm" else Sglang()


def _raise_told(event: Mapping[str, Any]) -> None:
    error = event.get("error")
    if error:
        raise StreamError(str(error.get("message") if isinstance(error, dict) else error)[:_MOST_SAID])


def _objects(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _content(choice: Mapping[str, Any]) -> Any:
    delta = choice.get("delta")
    return delta.get("content") if isinstance(delta, dict) else None


def _ids(values: Any) -> list[int]:
    if not isinstance(values, list) or not all(map(is_count, values)):
        raise StreamError(f"{str(values)[:40]} is no list of token ids")
    return values


def _counts(stream: Stream, told: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of prompt and output as told. Raises StreamError where the prompt is known to be another."""
    prompt_tokens, output_tokens = count(told, "prompt_tokens"), count(told, "completion_tokens")
    known = len(stream.prompt_token_ids or stream.given or ())
    if known and prompt_tokens != known:
        raise StreamError(f"counts {prompt_tokens} prompt tokens of {known}")
    return prompt_tokens, output_tokens
