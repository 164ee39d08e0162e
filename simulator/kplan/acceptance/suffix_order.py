"""The arrays of a suffix tree, and the order in which it keeps the continuations of a string.

Continuations are a list by falling count. The order of equal counts is that of Arctic Inference 0.1.1, which
vLLM runs (``csrc/suffix_decoding/suffix_tree.cc``): a new continuation goes last; one that is seen again goes
to the end of the next higher count, but to its front if it led its own count; one of which an occurrence is
removed goes to the front of the next lower count.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kplan.jit import bare, inline

Node = int | np.integer[Any]

NODES, GROUPS, FREE, SPARE = range(4)


class SuffixTree(NamedTuple):
    """State of a tree of ``n`` node slots; the functions here and in ``suffix_tree`` change it in place.

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
        trailer: (n,) by group, the last of them.
        ref: (n,) where the tokens that follow the only occurrence start; -1 once there are nodes for them.
        free: (n,) groups without members.
        spare: (n,) slots of nodes that were removed.
        used: (4,) nodes (with those removed), groups, free groups and spare slots in use.
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
    trailer: NDArray[np.int32]
    ref: NDArray[np.int64]
    free: NDArray[np.int32]
    spare: NDArray[np.int32]
    used: NDArray[np.int64]
    active: NDArray[np.int32]


@inline
def link_last(tree: SuffixTree, parent: Node, node: Node) -> None:
    """Put a new continuation of count 1 behind the others."""
    _link(tree, parent, node, -1)
    above = tree.before[node]
    if above >= 0 and tree.counts[above] == 1:
        tree.group[node] = tree.group[above]
        tree.trailer[tree.group[node]] = node
    else:
        _lead(tree, node)


@bare
def count_up(tree: SuffixTree, parent: Node, node: Node) -> None:
    """One more occurrence of ``node``; it moves to its place among the continuations of ``parent``."""
    group = tree.group[node]
    front, above = tree.leader[group], tree.before[node]
    led = front == node
    if led and above >= 0 and tree.counts[above] == tree.counts[node] + 1:
        front = tree.leader[tree.group[above]]
    _leave(tree, node)
    if front != node:
        _unlink(tree, parent, node)
        _link(tree, parent, node, front)
    tree.counts[node] += 1
    above, below = tree.before[node], tree.after[node]
    if led and front != node:
        tree.group[node] = tree.group[below]
        tree.leader[tree.group[node]] = node
    elif above >= 0 and tree.counts[above] == tree.counts[node]:
        tree.group[node] = tree.group[above]
        tree.trailer[tree.group[node]] = node
    else:
        _lead(tree, node)


@bare
def count_down(tree: SuffixTree, parent: Node, node: Node) -> None:
    """One occurrence of ``node`` less, of two or more; it moves as :func:`count_up` says."""
    final = tree.trailer[tree.group[node]]
    below = tree.after[final]
    _leave(tree, node)
    if final != node:
        _unlink(tree, parent, node)
        _link(tree, parent, node, below)
    tree.counts[node] -= 1
    if below >= 0 and tree.counts[below] == tree.counts[node]:
        tree.group[node] = tree.group[below]
        tree.leader[tree.group[node]] = node
    else:
        _lead(tree, node)


@inline
def unlist(tree: SuffixTree, parent: Node, node: Node) -> None:
    """Take ``node`` from the continuations of ``parent``."""
    _leave(tree, node)
    _unlink(tree, parent, node)


@inline
def _lead(tree: SuffixTree, node: Node) -> None:
    """Put ``node`` into a group of its own."""
    if tree.used[FREE] > 0:
        tree.used[FREE] -= 1
        group = np.int64(tree.free[tree.used[FREE]])
    else:
        group = tree.used[GROUPS]
        tree.used[GROUPS] += 1
    tree.group[node], tree.leader[group], tree.trailer[group] = group, node, node


@inline
def _leave(tree: SuffixTree, node: Node) -> None:
    """Take ``node``, still in its place, out of its group."""
    group = tree.group[node]
    leads, trails = tree.leader[group] == node, tree.trailer[group] == node
    if leads and trails:
        tree.free[tree.used[FREE]] = group
        tree.used[FREE] += 1
    elif leads:
        tree.leader[group] = tree.after[node]
    elif trails:
        tree.trailer[group] = tree.before[node]


@inline
def _unlink(tree: SuffixTree, parent: Node, node: Node) -> None:
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
def _link(tree: SuffixTree, parent: Node, node: Node, below: Node) -> None:
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
