"""SGLang's adaptive config: the JSON that holds a ladder of draft lengths per batch-size slot.

SGLang itself ignores unknown keys and checks no range; here both are refused, so that a file which means
something else than its author thinks is found before it is served.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from kplan_policies._text import checked_float, checked_int, checked_k

DEFAULT_LADDER: Final[Mapping[str, Any]] = {
    "1": {"candidate_steps": [1, 3, 5, 7]},
    "8": {"candidate_steps": [0, 1, 3], "down_hysteresis": 0.0},
    "32": {"candidate_steps": [0, 1], "down_hysteresis": 0.0},
    "64": {"candidate_steps": [0], "down_hysteresis": 0.0},
}
"""Shipped default of SGLang 0.5.23 (adaptive_spec_params.py)."""

SHARED_DEFAULTS: Final[Mapping[str, float]] = {
    "ema_alpha": 0.2,
    "update_interval": 5,
    "warmup_batches": 10,
    "down_hysteresis": -0.25,
    "up_hysteresis": 0.0,
    "ceiling_coeff": 0.0,
}
"""What a slot uses where neither it nor the top level of the file says otherwise (SGLang 0.5.23)."""

_BIG = 1e6
_MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Slot:
    """One rung set: batches routed here move between ``candidate_steps``. The names are SGLang's."""

    batch: int
    candidate_steps: tuple[int, ...]
    ema_alpha: float
    update_interval: int
    warmup_batches: int
    down_hysteresis: float
    up_hysteresis: float
    ceiling_coeff: float


def read_slots(ladder: Mapping[str, Any]) -> tuple[Slot, ...]:
    """Slots of an adaptive config, sorted by batch size.

    Raises:
        ValueError: no slot, a slot without ascending ``candidate_steps`` 0..254, an unknown key, a value
            outside its range (ema_alpha 0.001..1, update_interval >= 1, the others >= 0, hystereses any).
    """
    keys = [key for key in ladder if _is_slot(key)]
    if not keys:
        raise ValueError(
            'the adaptive config needs a batch-size key such as {"1": {"candidate_steps": [1, 3]}}; '
            f"it has {', '.join(map(repr, ladder)) or 'none'}"
        )
    shared = {key: value for key, value in ladder.items() if not _is_slot(key)}
    _known(shared, "the top level", "use a batch size or ")
    slots = sorted((_read_slot(key, ladder[key], shared) for key in keys), key=lambda slot: slot.batch)
    if len({slot.batch for slot in slots}) < len(slots):
        raise ValueError(f"two batch-size keys mean the same number: {', '.join(sorted(keys))}")
    return tuple(slots)


def load_ladder(path: Path) -> dict[str, Any]:
    """The adaptive config in a JSON file.

    Raises:
        ValueError: it cannot be read, is not JSON, or has a key twice.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe waits, a device never ends
            raise ValueError(f"the adaptive config {path} is no file")
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"the adaptive config {path} has more than {_MOST_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the adaptive config {path} cannot be read: {error}") from error
    return parse_ladder(text, str(path))


def parse_ladder(text: str, where: str = "the adaptive config") -> dict[str, Any]:
    """The adaptive config in a JSON text; an error calls it ``where``.

    Raises:
        ValueError: it is not a JSON object, or has a key twice.
    """
    try:
        ladder = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"{where} nests too deeply") from None
    if not isinstance(ladder, dict):
        raise ValueError(f"{where} must be a JSON object, not {type(ladder).__name__}")  # noqa: TRY004 - input
    return ladder


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"key {twice!r} stands twice in the adaptive config; JSON would keep only the last")
    return record


def _is_slot(key: str) -> bool:
    return key.isascii() and key.isdigit()


def _known(record: Mapping[str, Any], where: str, also: str = "") -> None:
    for key in record:
        if key not in SHARED_DEFAULTS:
            raise ValueError(
                f"unknown key {key!r} at {where} (SGLang would ignore it); {also}{', '.join(SHARED_DEFAULTS)}"
            )


def _read_slot(key: str, record: Any, shared: Mapping[str, Any]) -> Slot:
    where = f"batch size {key}"
    if not isinstance(record, Mapping):
        raise ValueError(f"{where}: must be a JSON object, not {record!r}")  # noqa: TRY004 - input
    own = {name: value for name, value in record.items() if name != "candidate_steps"}
    _known(own, where, "use candidate_steps, ")
    steps = record.get("candidate_steps")
    if not isinstance(steps, list | tuple) or not steps:
        raise ValueError(
            f"{where}: candidate_steps must be a list of draft lengths such as [1, 3], not {steps!r}"
        )
    steps = [checked_k(k) for k in steps]
    if any(low >= high for low, high in pairwise(steps)):
        raise ValueError(f"{where}: candidate_steps must ascend, not {steps}; write {sorted(set(steps))}")
    value = {**SHARED_DEFAULTS, **shared, **own}

    def number(name: str, low: float, high: float) -> float:
        return checked_float(f"{where}: {name}", value[name], low, high)

    return Slot(
        batch=int(key),
        candidate_steps=tuple(steps),
        ema_alpha=number("ema_alpha", 0.001, 1.0),
        update_interval=checked_int(f"{where}: update_interval", value["update_interval"], 1),
        warmup_batches=checked_int(f"{where}: warmup_batches", value["warmup_batches"], 0),
        down_hysteresis=number("down_hysteresis", -_BIG, _BIG),
        up_hysteresis=number("up_hysteresis", -_BIG, _BIG),
        ceiling_coeff=number("ceiling_coeff", 0.0, _BIG),
    )
