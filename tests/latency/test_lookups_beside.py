"""Lookups that stand beside a model drafter cost their own time, and none where nobody looks."""

from __future__ import annotations

import pytest

from kplan.latency import StepCost
from kplan.latency.compiled import mixed_parts
from tests.engine.scenes import price

REQUEST_S, TOKEN_S = 3e-6, 5e-9


def draft_s(cost: StepCost, *, look: int, prompt: int = 0, draft: int = 3, k: int = 2) -> float:
    """A step of 4 decodes of 500 tokens of context each, and a prompt of ``prompt`` tokens."""
    parts = mixed_parts(
        cost, 4, 4, 2000, 2000, int(prompt > 0), prompt, prompt, prompt * prompt / 2, 4, look, draft, 1500, k
    )
    return float(parts[1])


@pytest.mark.parametrize("lookups", [1, 2])
@pytest.mark.parametrize("prompt", [0, 300])
@pytest.mark.parametrize("look", [1, 4])
def test_each_looks_for_its_requests_over_the_whole_context(lookups: int, prompt: int, look: int) -> None:
    alone = price("eagle", max_k=3)._replace(lookup_request_s=REQUEST_S, lookup_token_s=TOKEN_S)
    more_s = draft_s(alone._replace(lookups=lookups), look=look, prompt=prompt) - draft_s(
        alone, look=look, prompt=prompt
    )
    assert more_s == pytest.approx(lookups * (look * REQUEST_S + (2000 + prompt) * TOKEN_S), rel=1e-6)


@pytest.mark.parametrize(("draft", "k"), [(3, 2), (0, 0)])
def test_nobody_looks_for_free(draft: int, k: int) -> None:
    alone = price("eagle", max_k=3)._replace(lookup_request_s=REQUEST_S, lookup_token_s=TOKEN_S)
    assert draft_s(alone._replace(lookups=2), look=0, draft=draft, k=k) == draft_s(
        alone, look=0, draft=draft, k=k
    )
