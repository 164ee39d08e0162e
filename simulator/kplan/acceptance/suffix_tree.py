"""Counted substrings of token sequences, as suffix decoding keeps them, in flat arrays for compiled loops.

A node stands for a string of at most ``depth`` tokens and counts where it occurs. Its continuations are a
list by falling count. The order of equal counts is that of Arctic Inference 0.1.1, which vLLM runs
(``csrc/suffix_decoding/suffix_tree.cc``): a new continuation goes last; one that is seen again goes to the
end of the next higher count, but to its front if it led its own count.

A string that occurred once has no nodes below it: ``ref`` says where in the tokens it goes on. So there are
about as many nodes as strings that repeat.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kplan.jit import bare, inline

ROOT = 0
END = -1
"""Stands between the sequences of a tree; no token has this id."""

_NODES, _GROUPS, _FREE = range(3)
_EMPTY = -1
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class SuffixTree(NamedTuple):
    """State of a tree of ``n`` node slots; the functions below change its arrays in place.

    Attributes:
        keys: (h,) hash table with linear probing: node * 2**32 + token of a child, -1 where free.
        children: (h,) the child.
        counts: (n,) occurrences of the string.
        token: (n,) its last token.
        first: (n,) continuation of the highest count, -1: none.
        last: (n,) continuation of the lowest count, -1: none.
        after: (n,) next in the list of continuations, -1: none.
        before: (n,) previous one, -1: none.
        group: (n,) which continuations have one count.
        leader: (n,) by group, the first of them.
        ref: (n,) where the tokens that follow the only occurrence start; -1 once there are nodes for them.
        free: (n,) groups without members.
        used: (3,) nodes, groups and free groups in use.
        active: (depth + 1,) node of the last d tokens of the growing sequence; -1: they occur nowhere else.
    """

    keys: NDArray[np.int64]
    children: NDArray[np.int32]
    counts: NDArray[np.int32]
    token: NDArray[np.int32]
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    after: NDArray[np.int32]
    before: NDArray[np.int32]
    group: NDArray[np.int32]
    leader: NDArray[np.int32]
    ref: NDArray[np.int64]
    free: NDArray[np.int32]
    used: NDArray[np.int64]
    active: NDArray[np.int32]


_PER_NODE = ("counts", "token", "first", "last", "after", "before", "group", "leader", "ref", "free")


def new_tree(depth: int) -> SuffixTree:
    """A tree of strings of at most ``depth`` tokens."""
    arrays: dict[str, NDArray[Any]] = {
        name: np.zeros(1, np.int64 if name == "ref" else np.int32) for name in _PER_NODE
    }
    for name in ("first", "last", "after", "before", "ref"):
        arrays[name][ROOT] = -1
    arrays["keys"], arrays["children"] = _table(1)
    tree = SuffixTree(used=np.array([1, 0, 0]), active=np.empty(depth + 1, np.int32), **arrays)
    restart(tree)
    return tree


def restart(tree: SuffixTree) -> None:
    """Begin another sequence."""
    tree.active[:] = -1
    tree.active[0] = ROOT


def with_room(tree: SuffixTree, tokens: int) -> SuffixTree:
    """The tree, with slots for what ``tokens`` more tokens can add: two nodes for each depth."""
    needed = int(tree.used[_NODES]) + 2 * tokens * (len(tree.active) - 1)
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
def _slot(keys: NDArray[np.int64], key: np.int64) -> np.int64:
    """Where ``key`` is in the table, or where it would be put."""
    at = np.int64((np.uint64(key) * _SPREAD) >> np.uint64(32)) & (len(keys) - 1)
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
                _count_up(tree, node, grown)
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
def _add(tree: SuffixTree, parent: int, token: int, ref: int) -> None:
    node = tree.used[_NODES]
    tree.used[_NODES] += 1
    key = _key(parent, token)
    slot = _slot(tree.keys, key)
    tree.keys[slot], tree.children[slot] = key, node
    tree.counts[node], tree.token[node], tree.ref[node] = 1, token, ref
    tree.first[node], tree.last[node] = -1, -1
    _link(tree, parent, node, -1)
    lower = tree.before[node]
    if lower >= 0 and tree.counts[lower] == 1:
        tree.group[node] = tree.group[lower]
    else:
        _lead(tree, node)


@bare
def _count_up(tree: SuffixTree, parent: int, node: int) -> None:
    """One more occurrence of ``node``; it moves to its place among the continuations of ``parent``."""
    count, group = tree.counts[node], tree.group[node]
    above, below = tree.before[node], tree.after[node]
    leads = tree.leader[group] == node
    alone = leads and (below < 0 or tree.counts[below] < count)
    tree.counts[node] = count + 1
    if leads:
        if above >= 0 and tree.counts[above] == count + 1:
            joined = tree.group[above]
            front = tree.leader[joined]
            _unlink(tree, parent, node)
            _link(tree, parent, node, front)
            tree.leader[joined], tree.group[node] = node, joined
            if alone:
                tree.free[tree.used[_FREE]] = group
                tree.used[_FREE] += 1
        elif not alone:
            _lead(tree, node)
        if not alone:
            tree.leader[group] = below
        return
    front = tree.leader[group]
    _unlink(tree, parent, node)
    _link(tree, parent, node, front)
    above = tree.before[node]
    if above >= 0 and tree.counts[above] == count + 1:
        tree.group[node] = tree.group[above]
    else:
        _lead(tree, node)


@inline
def _lead(tree: SuffixTree, node: int) -> None:
    """Put ``node`` into a group of its own."""
    if tree.used[_FREE] > 0:
        tree.used[_FREE] -= 1
        group = np.int64(tree.free[tree.used[_FREE]])
    else:
        group = tree.used[_GROUPS]
        tree.used[_GROUPS] += 1
    tree.group[node], tree.leader[group] = group, node


@inline
def _unlink(tree: SuffixTree, parent: int, node: int) -> None:
    above, below = tree.before[node], tree.after[node]
    if above >= 0:
        tree.after[above] = below
    else:
        tree.first[parent] = below
    if below >= 0:
        tree.before[below] = above
    else:
        tree.last[parent] = above


@inline
def _link(tree: SuffixTree, parent: int, node: int, below: int) -> None:
    """Into the list of ``parent`` before ``below``; at the end if that is -1."""
    above = tree.before[below] if below >= 0 else tree.last[parent]
    tree.before[node], tree.after[node] = above, below
    if above >= 0:
        tree.after[above] = node
    else:
        tree.first[parent] = node
    if below >= 0:
        tree.before[below] = node
    else:
        tree.last[parent] = node
