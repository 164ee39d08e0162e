"""What the page asks its server for: nothing else is handed to Dash, which trusts what it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Request

UPDATE = "/_dash-update-component"
_PARTS = frozenset(("output", "outputs", "inputs", "state", "changedPropIds", "parsedChangedPropsIds"))
_ARGUMENTS = frozenset(("endId",))
"""Of the address: what Dash signed for the page. Others name jobs in the background; there are none."""
_MOST_KEYS = 8
"""Of a value that is an object."""


def is_question(asked: Request, callbacks: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether ``asked`` calls what the page would call on its server, with as many inputs of the right shape.

    Args:
        callbacks: those of the page by their outputs, as Dash keeps them.
    """
    body = _body(asked)
    output = body.get("output")
    known = callbacks.get(output) if isinstance(output, str) else None
    if known is None or "callback" not in known:  # the rest runs in the browser
        return False
    if not (_ARGUMENTS.issuperset(asked.args) and _PARTS.issuperset(body)):
        return False
    if not all(_named(body.get(part, [])) == _named(known[part]) for part in ("inputs", "state")):
        return False
    values = [one.get("value") for part in ("inputs", "state") for one in body.get(part, [])]
    return (
        _named(body.get("outputs")) == _outputs(str(output))
        and _are_moved(body.get("changedPropIds", []), known["inputs"])
        and all(map(_is_plain, values))
    )


def _body(asked: Request) -> dict[str, Any]:
    """Of a POST of JSON; empty when it is something else, or nested beyond what can be read."""
    try:
        body = asked.get_json(silent=True) if asked.method == "POST" else None
    except RecursionError:
        body = None
    return body if isinstance(body, dict) else {}


def _named(parts: object) -> list[tuple[Any, Any]] | None:
    """Ids and properties of the parts of a call, None when they are something else."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return None
    return [(part.get("id"), part.get("property")) for part in parts]


def _outputs(output: str) -> list[tuple[str, str]]:
    """Ids and properties of ``..a.data...b.children..``."""
    pairs = [one.rpartition(".") for one in output[2:-2].split("...")]
    return [(name, prop.partition("@")[0]) for name, _, prop in pairs]


def _are_moved(moved: object, inputs: list[dict[str, Any]]) -> bool:
    """Whether these are inputs of the call, each at most once."""
    if not isinstance(moved, list) or len(moved) > len(inputs):
        return False
    return all(one in [f"{known['id']}.{known['property']}" for known in inputs] for one in moved)


def _is_plain(value: object) -> bool:
    """A text, a number or nothing, or a few of those by name: what the page keeps."""
    if isinstance(value, dict):
        return len(value) <= _MOST_KEYS and not any(isinstance(one, dict | list) for one in value.values())
    return not isinstance(value, list)
