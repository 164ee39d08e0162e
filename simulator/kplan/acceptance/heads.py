"""Which EAGLE head a recording holds, and the explicit rule by which it also serves the other name.

The field ``acc_eagle`` of SpecDecode-Bench's combined files does not name its head. It is EAGLE-3: the
quartiles over requests of the position-mean generation length on GSM8K are 2.69 / 2.90 / 3.29, against
2.71 / 2.92 / 3.26 for EAGLE-3 and 2.56 / 2.69 / 2.89 for EAGLE in Fig. 7 of arXiv:2601.11580 (Llama-3.1-8B),
with the same picture on InstructCoder and ShareGPT; upstream's own command line calls it ``eagle3``.
"""

from __future__ import annotations

from collections.abc import Mapping

from kplan.acceptance.trace import ProposerTrace

RECORDED_HEAD = "eagle3"
ALIASES: Mapping[str, str] = {"eagle": RECORDED_HEAD}
"""Alias -> recorded head. An EAGLE (1) head accepts less: the alias is optimistic, and the note says so."""


def with_aliases(proposers: dict[str, ProposerTrace]) -> tuple[dict[str, ProposerTrace], tuple[str, ...]]:
    """Add the aliases of the heads that are there; returns the proposers and a note for each alias."""
    added = {
        alias: proposers[head]
        for alias, head in ALIASES.items()
        if head in proposers and alias not in proposers
    }
    notes = tuple(
        f"proposer {alias}: alias of the {ALIASES[alias]} recording, there is none of {alias} in the file; "
        "optimistic: per position EAGLE generates 8-11% fewer tokens than EAGLE-3 (arXiv:2601.11580 Fig. 7)"
        for alias in added
    )
    return {**proposers, **added}, notes
