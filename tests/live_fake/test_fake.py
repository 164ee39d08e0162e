"""The fake server's answers and counters tell one story, so that what is tested against it can be trusted."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from kplan.live import Server, Window
from tests.live_fake.fake import Engine, FakeServer

VLLM_BODY: dict[str, Any] = {
    "model": "fake-model",
    "prompt": [7, 8, 9],
    "max_tokens": 50,
    "stream": True,
    "return_token_ids": True,
    "stream_options": {"include_usage": True},
}
SGLANG_BODY: dict[str, Any] = {
    "input_ids": [7, 8, 9],
    "stream": True,
    "sampling_params": {"max_new_tokens": 50, "ignore_eos": True},
}


def _events(server: FakeServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = httpx.post(server.url + path, json=body, trust_env=False).text.split("\n\n")
    assert [line for line in lines if line][-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_vllm_counts_what_it_streams() -> None:
    with FakeServer(Engine(k=3, offers=0.7)) as fake, Server(fake.url) as server:
        before = server.metrics("vllm")
        events = _events(fake, "/v1/completions", VLLM_BODY)
        window = Window(before, server.metrics("vllm"))
    chunks = [c["token_ids"] for e in events for c in e["choices"] if c["token_ids"]]
    told = events[-1]["metrics"]["speculative_decoding"]
    assert sum(map(len, chunks)) == events[-1]["usage"]["completion_tokens"] == 50
    assert len(chunks) == window.grown("emissions") + 1
    assert len(told["per_step_accepted"]) == window.grown("drafts")
    assert sum(told["per_step_drafted"]) == window.grown("draft_tokens")
    by_position = window.grown_by_position("accepted_per_position")
    assert by_position == {
        at: sum(accepted > at for accepted in told["per_step_accepted"]) for at in range(3)
    }


def test_sglang_counts_what_it_streams() -> None:
    with FakeServer(Engine(name="sglang", version="0.5.23")) as fake, Server(fake.url) as server:
        assert server.info().engine == "sglang"
        events = _events(fake, "/generate", SGLANG_BODY)
        after = server.metrics("sglang")
    told = events[-1]["meta_info"]
    assert told["completion_tokens"] == len(events[-1]["output_ids"]) == 50
    assert told["spec_verify_ct"] == sum(told["spec_correct_drafts_histogram"]) == after.total("drafts")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_same_prompt_gets_the_same_answer(path: str) -> None:
    body = VLLM_BODY | ({"messages": [{"role": "user", "content": "a b"}]} if "chat" in path else {})
    with FakeServer() as fake:
        for _ in range(2):
            _events(fake, path, body)
    assert fake.done[0] == fake.done[1]
