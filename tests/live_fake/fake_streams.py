"""The fake server's streamed answers, tokens of texts, and what it takes out of a request."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.live_fake.fake_kind import Engine

VOCABULARY = 5000
FIRST_TOKEN = 4
"""Tokens below it are special."""


def token_ids(text: str) -> list[int]:
    """The tokens of a text, one a word: "w17" is 17, any other word a number of its own."""
    words = text.split()
    return [
        int(word[1:])
        if word[:1] == "w" and word[1:].isdigit()
        else FIRST_TOKEN + zlib.crc32(word.encode()) % (VOCABULARY - FIRST_TOKEN)
        for word in words
    ] or [0]


def chat_tokens(messages: list[dict[str, Any]]) -> list[int]:
    """The tokens of a conversation: special ones around each message."""
    ids: list[int] = []
    for message in messages:
        ids += [1, *token_ids(str(message["content"])), 2]
    return [*ids, 1]


class Stream:
    """The events of one streamed answer."""

    def __init__(
        self, engine: Engine, body: dict[str, Any], prompt: list[int], name: str, *, chat: bool
    ) -> None:
        self.engine, self.body, self.prompt, self.name, self.chat = engine, body, prompt, name, chat
        self.tokens: list[int] = []
        self.steps: list[tuple[int, int]] = []

    def chunk(self, tokens: list[int]) -> Iterator[dict[str, Any]]:
        """Events that tell of new tokens."""
        raise NotImplementedError

    def end(self) -> Iterator[dict[str, Any]]:
        """Events after the last token."""
        raise NotImplementedError

    def histogram(self) -> list[int]:
        """(k + 1,) steps with a draft by accepted drafts."""
        counts = Counter(accepted for drafted, accepted in self.steps if drafted)
        return [counts[j] for j in range(self.engine.k + 1)]


class VllmStream(Stream):
    def _event(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {"id": self.name, "object": kind, "model": self.engine.model, "choices": choices, **more}

    def chunk(self, tokens: list[int]) -> Iterator[dict[str, Any]]:
        ids = bool(self.body.get("return_token_ids"))
        text = "".join(f"w{token} " for token in tokens)
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        if self.chat:
            if not self.tokens:
                role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                yield self._event([role], prompt_token_ids=self.prompt if ids else None)
            choice["delta"] = {"content": text}
        else:
            choice |= {"text": text, "prompt_token_ids": self.prompt if ids and not self.tokens else None}
        choice["token_ids"] = tokens if ids else None
        self.tokens += tokens
        if len(self.tokens) >= self.body["max_tokens"]:
            choice["finish_reason"] = "length"
        yield self._event([choice])

    def end(self) -> Iterator[dict[str, Any]]:
        reason = "length" if len(self.tokens) >= self.body["max_tokens"] else "stop"
        last: dict[str, Any] = {"index": 0, "finish_reason": reason, "token_ids": []}
        last |= {"delta": {}} if self.chat else {"text": ""}
        if reason == "stop":
            yield self._event([last])
        if not self.body.get("stream_options", {}).get("include_usage"):
            return
        usage = {"prompt_tokens": len(self.prompt), "completion_tokens": len(self.tokens)}
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        told = self._acceptance()
        metrics = {} if told is None else {"metrics": {"speculative_decoding": told}}
        yield self._event([], usage=usage, **metrics)

    def _acceptance(self) -> dict[str, Any] | None:
        if self.engine.detail == "none" or not self.engine.k:
            return None
        verified = [(drafted, accepted) for drafted, accepted in self.steps if drafted]
        drafts, kept = sum(d for d, _ in verified), sum(a for _, a in verified)
        told: dict[str, Any] = {
            "mean_acceptance_length": 1.0 + kept / len(verified) if verified else 1.0,
            "draft_acceptance_rate": kept / drafts if drafts else 0.0,
            "acceptance_histogram": self.histogram(),
            "num_spec_steps": len(verified),
            "num_accepted_draft_tokens": kept,
            "num_draft_tokens": drafts,
            "num_spec_tokens": self.engine.k,
        }
        if self.engine.detail == "detailed" and verified:
            told["per_step_accepted"] = [a for _, a in verified]
            told["per_step_drafted"] = [d for d, _ in verified]
        return told


class SglangStream(Stream):
    def chunk(self, tokens: list[int]) -> Iterator[dict[str, Any]]:
        self.tokens += tokens
        yield self._event(None)

    def end(self) -> Iterator[dict[str, Any]]:
        most = self.body["sampling_params"]["max_new_tokens"]
        yield self._event({"type": "length" if len(self.tokens) >= most else "stop"})

    def _event(self, reason: dict[str, Any] | None) -> dict[str, Any]:
        told = {
            "id": self.name,
            "prompt_tokens": len(self.prompt),
            "completion_tokens": len(self.tokens),
            "finish_reason": reason,
        }
        if self.steps and self.engine.k:
            kept = sum(accepted for _, accepted in self.steps)
            told |= {
                "spec_num_correct_drafts": kept,
                "spec_num_proposed_drafts": len(self.steps) * self.engine.k,
                "spec_verify_ct": len(self.steps),
                "spec_correct_drafts_histogram": self.histogram(),
            }
        return {"text": "", "output_ids": list(self.tokens), "meta_info": told}


def vllm_request(body: dict[str, Any]) -> tuple[list[int], int, bool]:
    if "messages" in body:
        prompt = chat_tokens(body["messages"])
    else:
        prompt = body["prompt"] if isinstance(body["prompt"], list) else token_ids(body["prompt"])
    return prompt, int(body["max_tokens"]), bool(body.get("ignore_eos"))


def sglang_request(body: dict[str, Any]) -> tuple[list[int], int, bool]:
    prompt = body["input_ids"] if "input_ids" in body else token_ids(body["text"])
    sampling = body["sampling_params"]
    return prompt, int(sampling["max_new_tokens"]), bool(sampling.get("ignore_eos"))


def merged(steps: Iterator[list[int]], at_a_time: int) -> Iterator[list[int]]:
    """The prefill's chunk, then chunks of ``at_a_time`` steps."""
    held: list[int] = []
    count = 0
    for i, tokens in enumerate(steps):
        held += tokens
        count += 1
        if i == 0 or count == at_a_time:
            yield held
            held, count = [], 0
    if held:
        yield held
