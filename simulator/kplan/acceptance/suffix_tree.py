"""Counted substrings of token sequences, as suffix decoding keeps them, in flat arrays for compiled loops.

A node stands for a string of at most ``depth`` tokens and counts where it occurs; ``suffix_order`` says in
what order its continuations stand. A string that occurred once has no nodes below it: ``ref`` says where in
the tokens it goes on. So there are about as many nodes as strings that repeat.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.suffix_order import (
    NODES,
    SPARE,
    SuffixTree,
    count_down,
    count_up,
    link_last,
    unlist,
)
from kplan.jit import bare, inline

ROOT = 0
END = -1
"""Stands between the sequences of a tree; no token has this id."""

_EMPTY = -1
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_PER_NODE = (
    "counts", "token", "first", "last", "after", "before",
    "group", "leader", "trailer", "ref", "free", "spare",
)  # fmt: skip


def new_tree(depth: int) -> SuffixTree:
    """A tree of strings of at most ``depth`` tokens."""
    arrays: dict[str, NDArray[Any]] = {
        name: np.zeros(1, np.int64 if name == "ref" else np.int32) for name in _PER_NODE
    }
    for name in ("first", "last", "after", "before", "ref"):
        arrays[name][ROOT] = -1
    arrays["keys"], arrays["children"] = _table(1)
    tree = SuffixTree(used=np.array([1, 0, 0, 0]), active=np.empty(depth + 1, np.int32), **arrays)
    restart(tree)
    return tree


def restart(tree: SuffixTree) -> None:
    """Begin another sequence."""
    tree.active[:] = -1
    tree.active[0] = ROOT


def with_room(tree: SuffixTree, tokens: int) -> SuffixTree:
    """The tree, with slots for what ``tokens`` more tokens can add: two nodes for each depth."""
    needed = int(tree.used[NODES] - tree.used[SPARE]) + 2 * tokens * (len(tree.active) - 1)
    if needed <= len(tree.counts):
        return tree
    size = max(needed, 3 * len(tree.counts) // 2)
    keys, children = _table(size)
    _move(tree.keys, tree.children, keys, children)
    arrays = {name: _longer(getattr(tree, name), size) for name in _PER_NODE}
    return tree._replace(keys=keys, children=children, **arrays)


def _table(nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """An empty hash table that is at most half full with ``nodes``; its size is a power of two."""
    size = 1 << (2 * nodes).bit_length()
    return np.full(size, _EMPTY, np.int64), np.empty(size, np.int32)


def _longer(values: NDArray[Any], size: int) -> NDArray[Any]:
    longer = np.empty(size, values.dtype)
    longer[: len(values)] = values
    return longer


@inline
def _key(node: int | np.int64, token: int) -> np.int64:
    return (np.int64(node) << 32) | np.int64(token)


@inline
def _home(keys: NDArray[np.int64], key: np.int64) -> np.int64:
    """Where the search for ``key`` begins."""
    return np.int64((np.uint64(key) * _SPREAD) >> np.uint64(32)) & (len(keys) - 1)


@inline
def _slot(keys: NDArray[np.int64], key: np.int64) -> np.int64:
    """Where ``key`` is in the table, or where it would be put."""
    at = _home(keys, key)
    while keys[at] not in (key, _EMPTY):
        at = (at + 1) & (len(keys) - 1)
    return at


@bare
def _move(
    keys: NDArray[np.int64],
    children: NDArray[np.int32],
    to_keys: NDArray[np.int64],
    to_children: NDArray[np.int32],
) -> None:
    """Copy one table into another, empty one."""
    for i in range(len(keys)):
        if keys[i] != _EMPTY:
            slot = _slot(to_keys, keys[i])
            to_keys[slot], to_children[slot] = keys[i], children[i]


@bare
def append(tree: SuffixTree, store: NDArray[np.int32], at: int) -> None:
    """Add ``store[at]`` to the growing sequence, whose earlier tokens stand before it in ``store``."""
    depth = len(tree.active) - 1
    for d in range(depth - 1, -1, -1):
        node = tree.active[d]
        grown = -1
        if node >= 0:
            slot = _slot(tree.keys, _key(node, store[at]))
            if tree.keys[slot] != _EMPTY:
                grown = tree.children[slot]
                count_up(tree, node, grown)
                behind = tree.ref[grown]
                if behind >= 0 and d + 1 < depth:
                    tree.ref[grown] = -1
                    if store[behind] != END:
                        _add(tree, grown, store[behind], behind + 1)
            else:
                _add(tree, node, store[at], at + 1)
        tree.active[d + 1] = grown


@bare
def find(
    tree: SuffixTree, store: NDArray[np.int32], limit: int, text: NDArray[np.int32], start: int, stop: int
) -> tuple[np.int64, np.int64]:
    """Node of ``text[start:stop]``, shorter than the depth, and where in ``store`` it goes on.

    Returns:
        (node, at): node -1 if the string does not occur; at -1 if the continuations are the node's.
    """
    node, at = np.int64(ROOT), np.int64(-1)
    for i in range(start, stop):
        if at < 0:
            at = tree.ref[node]
        if at >= 0:
            if at >= limit or store[at] != text[i]:
                return np.int64(-1), np.int64(-1)
            at += 1
            continue
        slot = _slot(tree.keys, _key(node, text[i]))
        if tree.keys[slot] == _EMPTY:
            return np.int64(-1), np.int64(-1)
        node = np.int64(tree.children[slot])
    return node, at


@bare
def remove(tree: SuffixTree, sequence: NDArray[np.int32]) -> None:
    """Take away the occurrences of a (L,) sequence that was appended whole, and is not the growing one."""
    depth = len(tree.active) - 1
    for start in range(len(sequence)):
        node = np.int64(ROOT)
        for at in range(start, min(start + depth, len(sequence))):
            slot = _slot(tree.keys, _key(node, sequence[at]))
            if tree.keys[slot] == _EMPTY:
                break
            child = np.int64(tree.children[slot])
            if tree.counts[child] == 1:
                _drop(tree, node, child)
                break
            count_down(tree, node, child)
            node = child


@inline
def _drop(tree: SuffixTree, parent: np.int64, node: np.int64) -> None:
    """Remove a string that occurs once, and those that it begins: at most one of each length."""
    while node >= 0:
        below = np.int64(tree.first[node])
        unlist(tree, parent, node)
        _forget(tree, _key(parent, tree.token[node]))
        tree.spare[tree.used[SPARE]] = node
        tree.used[SPARE] += 1
        parent, node = node, below


@inline
def _forget(tree: SuffixTree, key: np.int64) -> None:
    """Delete a key of the table; those that were put behind it for want of room move up."""
    keys, last = tree.keys, len(tree.keys) - 1
    gap = _slot(keys, key)
    at = gap
    while True:
        at = (at + 1) & last
        if keys[at] == _EMPTY:
            break
        if ((at - _home(keys, keys[at])) & last) >= ((at - gap) & last):
            keys[gap], tree.children[gap] = keys[at], tree.children[at]
            gap = at
    keys[gap] = _EMPTY


@bare
def _add(tree: SuffixTree, parent: int, token: int, ref: int) -> None:
    if tree.used[SPARE] > 0:
        tree.used[SPARE] -= 1
        node = np.int64(tree.spare[tree.used[SPARE]])
    else:
        node = tree.used[NODES]
        tree.used[NODES] += 1
    key = _key(parent, token)
    slot = _slot(tree.keys, key)
    tree.keys[slot], tree.children[slot] = key, node
    tree.counts[node], tree.token[node], tree.ref[node] = 1, token, ref
    tree.first[node], tree.last[node] = -1, -1
    link_last(tree, parent, node)
