"""The part of a policy text behind its name: constructor arguments read from it, and written back."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

_PAIR = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def read_args(cls: type[Any], arg: str | None) -> dict[str, Any]:
    """Constructor arguments of ``cls`` out of ``arg``, None when nothing was written.

    ``key=value,...`` sets parameters by name, each read as its annotated type. Anything else goes to
    ``cls.from_arg(arg) -> kwargs`` when the class has that, or sets the first parameter.

    Raises:
        ValueError: an unknown or repeated key, a value of another type, a required one missing; and what
            ``from_arg`` raises.
    """
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind not in _VARIADIC
    }
    required = any(parameter.default is parameter.empty for parameter in parameters.values())
    if arg is None and not required:
        return {}
    arg = arg or ""
    takes = f"it takes {', '.join(parameters)}" if parameters else "it takes no parameter"
    wanted = _types(cls)
    items = _split(arg)
    pairs = [(match[1], match[2]) for item in items if (match := _PAIR.fullmatch(item))]
    if items and len(pairs) == len(items):
        for key, _ in pairs:
            if key not in parameters:
                raise ValueError(f"it has no parameter {key!r}; {takes}")
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a parameter is given twice; give each once")
        return {key: _value(key, value.strip(), wanted.get(key, Any)) for key, value in pairs}
    from_arg = getattr(cls, "from_arg", None)
    if callable(from_arg):
        return dict(from_arg(arg))
    if not items:
        raise ValueError(f"a value is missing; {takes}")
    if len(items) > 1 or not parameters:
        raise ValueError(f"{arg!r} is not key=value,...; {takes}")
    first = next(iter(parameters))
    return {first: _value(first, arg.strip(), wanted.get(first, Any))}


def write_args(base: str, kwargs: Mapping[str, Any]) -> str:
    """``base:key=value,...``, which :func:`read_args` reads back."""
    pairs = [f"{key}={_shown(value)}" for key, value in kwargs.items()]
    return f"{base}:{','.join(pairs)}" if pairs else base


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True)


def _types(cls: type[Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls.__init__)
    except (NameError, TypeError, AttributeError):  # annotations that name what only a type checker imports
        return {}


def _split(arg: str) -> list[str]:
    """Split at the commas that stand outside brackets and double quotes."""
    items, depth, quoted, start = [], 0, False, 0
    for i, char in enumerate(arg):
        if char == '"':
            quoted = not quoted
        elif not quoted:
            depth += (char in "[{(") - (char in "]})")
            if char == "," and depth == 0:
                items.append(arg[start:i])
                start = i + 1
    return [*items, arg[start:]] if arg.strip() else []


def _value(key: str, text: str, wanted: Any) -> Any:
    """``text`` as the parameter's type; what is not int, float, bool or str is read as JSON."""
    union = typing.get_origin(wanted) in (typing.Union, types.UnionType)
    options = typing.get_args(wanted) if union else (wanted,)
    for option, convert in ((bool, _bool), (int, int), (float, float)):
        if option in options:
            try:
                return convert(text)
            except ValueError:
                continue
    if str in options:
        return text
    if type(None) in options and text in ("null", "None"):
        return None
    kind = {int: "an integer", float: "a number", bool: "true or false"}.get(options[0])
    if kind is not None:
        raise ValueError(f"{key} must be {kind}, not {text!r}")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if wanted is Any:
            return text
        raise ValueError(f"{key} must be JSON, not {text!r}") from error


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"
