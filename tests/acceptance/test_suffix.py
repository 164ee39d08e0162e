"""Suffix decoding replayed, against its rule spelled out over plain lists, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplan.acceptance.suffix import SuffixReplay, SuffixRule
from kplan.acceptance.suffix_order import NODES, SPARE
from kplan.errors import InputError

F = np.float32
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=40)
rules = st.builds(
    SuffixRule,
    k=st.integers(1, 12),
    tree_depth=st.integers(2, 10),
    spec_factor=st.sampled_from([0.0, 0.5, 1.0, 2.5]),
    min_probability=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    max_cached_requests=st.sampled_from([0, 1, 2, 3, 10_000]),
)


class PlainTree:
    """Every string of at most ``depth`` tokens with its continuations as a list of [token, count].

    The list moves as the sibling list of Arctic Inference 0.1.1 does (``_increment_count``).
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.count: dict[tuple[int, ...], int] = {}
        self.next: dict[tuple[int, ...], list[list[int]]] = {}

    def append(self, text: list[int], token: int) -> None:
        """``text``: the sequence before ``token``."""
        for start in range(max(0, len(text) + 1 - self.depth), len(text) + 1):
            parent = tuple(text[start:])
            self.count[(*parent, token)] = self.count.get((*parent, token), 0) + 1
            self._move(self.next.setdefault(parent, []), token)

    @staticmethod
    def _move(siblings: list[list[int]], token: int) -> None:
        place = next((i for i, one in enumerate(siblings) if one[0] == token), None)
        if place is None:
            siblings.append([token, 1])
            return
        count = siblings[place][1]
        first = next(i for i, one in enumerate(siblings) if one[1] == count)
        to = first  # behind those of the next higher count
        if place == first:  # in front of them
            to = next(i for i, one in enumerate(siblings) if one[1] <= count + 1)
        siblings.insert(to, siblings.pop(place))
        siblings[to][1] = count + 1

    def remove(self, text: list[int]) -> None:
        """Take the whole sequence ``text`` away, as ``SuffixTree::remove`` and ``_decrement_count`` do."""
        for start in range(len(text)):
            for stop in range(start + 1, min(start + self.depth, len(text)) + 1):
                parent, node = tuple(text[start : stop - 1]), tuple(text[start:stop])
                self.count[node] -= 1
                siblings = self.next[parent]
                place = next(i for i, one in enumerate(siblings) if one[0] == node[-1])
                moved = siblings.pop(place)
                moved[1] -= 1
                if moved[1]:  # to the front of those of its new count or less
                    place = next((i for i, one in enumerate(siblings) if one[1] <= moved[1]), len(siblings))
                    siblings.insert(place, moved)
                else:
                    del self.count[node]

    def draft(self, text: list[int], rule: SuffixRule) -> tuple[float, list[int]]:
        best: tuple[float, list[int]] = (F(0), [])
        for m in range(1, min(self.depth, len(text))):
            match = tuple(text[-m:])
            if match not in self.count:
                break
            chance, score, drafts = F(1), F(0), []
            while len(drafts) < min(rule.k, int(m * rule.spec_factor)) and m + len(drafts) < self.depth:
                node = (*match, *drafts)
                if not self.next.get(node):
                    break
                token, count = self.next[node][0]
                chance *= F(count) / F(self.count[node])
                if chance < F(rule.min_probability):
                    break
                score += chance
                drafts.append(token)
            if score >= best[0]:
                best = (score, drafts)
        return best


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=6), rules)
def test_replay_is_the_rule(requests: list[tuple[list[int], list[int]]], rule: SuffixRule) -> None:
    replay, earlier = SuffixReplay(rule), PlainTree(rule.tree_depth)
    for served, (prompt, generated) in enumerate(requests):
        if 0 < rule.max_cached_requests <= served:
            earlier.remove(requests[served - rule.max_cached_requests][1])
        acc, drafted = replay.replay(np.array(prompt, np.int32), np.array(generated, np.int32))
        assert (acc[0], drafted[0]) == (1, 0)
        own = PlainTree(rule.tree_depth)
        for i, token in enumerate(prompt):
            own.append(prompt[:i], token)
        for i in range(1, len(generated) + 1):
            text = prompt + generated[:i]
            own.append(text[:-1], text[-1])
            earlier.append(generated[: i - 1], text[-1])
            if i == len(generated):
                break
            mine = own.draft(text, rule)
            others = earlier.draft(text, rule) if rule.max_cached_requests else (F(0), [])
            draft = others[1] if others[0] > mine[0] else mine[1]
            right = 0
            while right < min(len(draft), len(generated) - i) and draft[right] == generated[i + right]:
                right += 1
            assert drafted[i] == len(draft)
            assert acc[i] == min(right + 1, len(generated) - i)


def replayed(rule: SuffixRule, *requests: tuple[list[int], list[int]]) -> tuple[list[int], list[int]]:
    """acc and drafted of the last request."""
    replay = SuffixReplay(rule)
    for prompt, generated in requests:
        acc, drafted = replay.replay(np.array(prompt, np.int32), np.array(generated, np.int32))
    return acc.tolist(), drafted.tolist()


def test_a_copied_prompt_is_drafted_as_far_as_it_was_matched() -> None:
    # After 1 the match is 1 token long, after 1 2 two, ...: each step may draft as many.
    acc, drafted = replayed(SuffixRule(), ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 9]))
    # The last draft is 6 7 8 and what followed the 8: the output itself, 1 2.
    assert drafted == [0, 1, 2, 3, 4, 5]
    assert acc == [1, 2, 3, 3, 2, 1]


def test_an_earlier_output_is_known_and_an_earlier_prompt_is_not() -> None:
    asked = ([7], [1, 2, 3])
    assert replayed(SuffixRule(), ([7], [1, 2, 3]), asked)[0] == [1, 2, 1]
    assert replayed(SuffixRule(), ([1, 2, 3], [8]), asked)[0] == [1, 1, 1]
    assert replayed(SuffixRule(max_cached_requests=0), ([7], [1, 2, 3]), asked)[0] == [1, 1, 1]


def test_the_oldest_output_is_forgotten_when_one_more_begins() -> None:
    asked, other = ([7], [1, 2, 3]), ([7], [5])
    # With room for two, the request itself and one output before it.
    assert replayed(SuffixRule(max_cached_requests=2), asked, asked)[0] == [1, 2, 1]
    assert replayed(SuffixRule(max_cached_requests=2), asked, other, asked)[0] == [1, 1, 1]
    assert replayed(SuffixRule(max_cached_requests=3), asked, other, asked)[0] == [1, 2, 1]
    assert replayed(SuffixRule(max_cached_requests=1), asked, asked)[0] == [1, 1, 1]


def test_the_memory_of_forgotten_outputs_is_used_again() -> None:
    draw = np.random.default_rng(2)
    replay, nodes = SuffixReplay(SuffixRule(max_cached_requests=3)), []
    for _ in range(60):
        replay.replay(np.array([1], np.int32), draw.integers(0, 3, 200).astype(np.int32))
        nodes.append(int(replay._global.used[NODES] - replay._global.used[SPARE]))
    # Strings of up to 24 tokens over 3 outputs of 200: no more nodes than that, however many came before.
    assert max(nodes) <= 3 * 200 * 24
    assert max(nodes[30:]) < 1.1 * max(nodes[:30])
    assert replay._global.used[NODES] < 1.1 * max(nodes) + 2 * 24


def test_the_depth_bounds_match_and_draft_together() -> None:
    same = [5] * 60
    _, drafted = replayed(SuffixRule(tree_depth=8, k=20), ([5], same))
    assert max(drafted) == 4  # 4 + 4 = 8
    _, drafted = replayed(SuffixRule(tree_depth=8, k=20, spec_factor=3), ([5], same))
    assert max(drafted) == 6  # 2 matched, 6 drafted


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("k", 0), ("k", 255), ("tree_depth", 1), ("tree_depth", 1025), ("spec_factor", -0.5),
        ("spec_factor", float("nan")), ("min_probability", 1.5), ("min_probability", float("nan")),
        ("max_cached_requests", -1),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(setting: str, value: float) -> None:
    with pytest.raises(InputError, match=f"got {value}"):
        SuffixRule(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("generated", [[], [1, -2]])
def test_bad_tokens_are_refused(generated: list[int]) -> None:
    with pytest.raises(InputError):
        SuffixReplay(SuffixRule()).replay(np.array([1], np.int32), np.array(generated, np.int32))
