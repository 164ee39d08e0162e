"""Policy texts: what ``--policy`` takes, turned into something that builds the policy.

    off   fixed:3   table:1-64=3,65-128=1,129-=0   sglang-ema   sglang-ema:ladder.json   heuristic   goodput
    oracle   goodput:weight=0.2,probe_every=32   match-else:n=4
    my_package.module:Class   path/to/file.py:Class:key=value

The names are the entry points of the group ``kplan.policies``, so an installed package adds its own. What
follows the colon is ``key=value,...`` for the constructor, or one lone value: that is given to the class's
``from_arg(arg) -> kwargs`` if it has one, else to the constructor's first parameter.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from kplan.errors import InputError
from kplan.policy import Policy, PolicyInfo
from kplan.policy_args import read_args, write_args

GROUP = "kplan.policies"

_CLASS = re.compile(r"(?P<place>[^:]+):(?P<cls>[A-Za-z_]\w*)(?::(?P<arg>.*))?", re.DOTALL)


@dataclass(frozen=True)
class PolicySpec:
    """A policy that can be built afresh for every run, for policies keep state. Two are equal by their text.

    Attributes:
        text: the text that makes it, in its shortest form.
        cls: the policy's class.
        kwargs: its constructor's arguments.
        info: what the class says of itself.
    """

    text: str
    cls: type[Policy] = field(compare=False)
    kwargs: Mapping[str, Any] = field(compare=False)
    info: PolicyInfo = field(compare=False)

    @property
    def name(self) -> str:
        """What stands before the first colon: ``fixed`` of ``fixed:3``."""
        return self.text.partition(":")[0]

    def build(self) -> Policy:
        """A new policy without history."""
        return self.cls(**self.kwargs)

    @property
    def exportable(self) -> bool:
        """Whether an engine of today can run it."""
        return bool(self.info.engines) and not self.info.needs_future

    @property
    def why_not(self) -> str:
        """Why no engine can run it; empty when one can."""
        return "" if self.exportable else self.info.why_not or "no engine of today runs it"

    def __reduce__(self) -> tuple[Any, ...]:
        # The text is the identity: a class out of a user's file could not be pickled by reference.
        return parse_policy, (self.text,)


def parse_policy(text: str) -> PolicySpec:
    """Read a policy text and check that it builds.

    Raises:
        InputError: unknown name, bad argument, a class that cannot be imported, is no policy, or refuses its
            arguments; one line each.
    """
    found = _find(text)
    return _spec(text, found.base, found.cls, found.arg, registered=found.registered)


def refuse_code(text: str, where: str) -> None:
    """Refuse a policy that is code of a file or a module, where a file that may be another's names it.

    Args:
        text: of the policy, as ``--policy`` takes it.
        where: what names it, for the message.

    Raises:
        InputError: it is no policy that is registered.
    """
    if names_code(text):
        bound = "is code, which only --policy and --family may name"
        raise InputError(f"policy of {where}", text, bound, "read that code, then name it there")


def names_code(text: str) -> bool:
    """Whether a policy text names a class of a file or of a module, and none that is registered."""
    name = text.strip().partition(":")[0]
    match = _CLASS.fullmatch(text.strip())
    known = any(point.name == name for point in _entry_points())
    return not known and match is not None and _is_place(match["place"])


def policy_class(text: str) -> tuple[str, type[Policy]]:
    """The name or ``place:Class`` that stands before the arguments of a policy text, and the class.

    Raises:
        InputError: as :func:`parse_policy`, but for its arguments; or there are some.
    """
    found = _find(text)
    if found.arg is not None:
        raise InputError("policy", _short(text), "names one policy, not its class", f"write {found.base}")
    return found.base, found.cls


@dataclass(frozen=True)
class _Found:
    """A policy text taken apart."""

    base: str
    cls: type[Policy]
    arg: str | None
    registered: bool


def _find(text: str) -> _Found:
    name, colon, arg = text.strip().partition(":")
    entry = next((point for point in _entry_points() if point.name == name), None)
    if entry is not None:
        return _Found(name, _load(text, entry.value), arg if colon else None, registered=True)
    match = _CLASS.fullmatch(text.strip())
    if match is None or not names_code(text):
        raise _unknown(text, name)
    base = f"{match['place']}:{match['cls']}"
    return _Found(base, _load(text, base), match["arg"], registered=False)


def list_policies() -> list[tuple[str, PolicyInfo]]:
    """(name, info) of every registered policy, sorted by name; one that cannot be loaded says why."""
    found = []
    for entry in _entry_points():
        try:
            info = info_of(_load(entry.name, entry.value), entry.value)
        except InputError as error:
            info = PolicyInfo(f"cannot be loaded: {error}", source=entry.value, why_not="cannot be loaded")
        found.append((entry.name, info))
    return found


@cache
def _entry_points() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def _unknown(text: str, name: str) -> InputError:
    names = [point.name for point in _entry_points()]
    close = difflib.get_close_matches(name, names, n=2)
    bound = f"no policy is called {name!r}" + (f"; did you mean {' or '.join(close)}?" if close else "")
    fix = f"choose from {', '.join(names)}, or name a class: pkg.module:Class or path/to/file.py:Class"
    return InputError("policy", text, bound, fix)


def _is_place(place: str) -> bool:
    """Whether ``place`` can only be a file or a module, so that a mistyped name is not taken for one."""
    if place.endswith(".py") or "/" in place or "." in place:
        return True
    return place.isidentifier() and importlib.util.find_spec(place) is not None


def _load(text: str, base: str) -> type[Policy]:
    """The class at ``module:Class`` or ``file.py:Class``."""
    place, _, cls_name = base.rpartition(":")
    try:
        module = _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:  # a user's module may raise anything, or exit
        fix = "" if place.endswith(".py") else "install it, or name its file: path/to/file.py:Class"
        raise InputError("policy", text, f"{place} cannot be imported: {told(error)}", fix) from error
    cls = getattr(module, cls_name, None)
    if not inspect.isclass(cls):
        own = [name for name, member in vars(module).items() if _is_policy_class(member)]
        fix = f"it has {', '.join(own)}" if own else "it has no class with choose_k"
        raise InputError("policy", text, f"{place} has no class {cls_name}", fix)
    if not _is_policy_class(cls):
        raise InputError("policy", text, f"{cls_name} is no policy", "give it a method choose_k(self, step)")
    return cast("type[Policy]", cls)


def _is_policy_class(member: object) -> bool:
    return inspect.isclass(member) and callable(getattr(member, "choose_k", None))


def _module_of_file(path: Path) -> types.ModuleType:
    # Named by its contents: read again it is the same module (its classes stay one), edited it is another.
    source = path.read_bytes()
    digest = hashlib.blake2b(bytes(path.resolve()) + source, digest_size=8).hexdigest()
    name = f"kplan_file_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses look their module up while the class is made
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102 - asked for by --policy
    except BaseException:
        del sys.modules[name]
        raise
    return module


def info_of(cls: type[Policy], source: str) -> PolicyInfo:
    """What ``cls`` says of itself, or else what can be said of a class found at ``source``."""
    info = getattr(cls, "info", None)
    if isinstance(info, PolicyInfo) and "info" in vars(cls):
        return info
    # A class derived from another has another rule: no engine runs it because one runs its parent.
    return PolicyInfo(
        summary=(inspect.getdoc(cls) or cls.__name__).splitlines()[0],
        source=source,
        why_not="its class declares no engine that runs it",
        needs_future=isinstance(info, PolicyInfo) and info.needs_future,
        combines=isinstance(info, PolicyInfo) and info.combines,
    )


def _spec(text: str, base: str, cls: type[Policy], arg: str | None, *, registered: bool) -> PolicySpec:
    try:
        kwargs = read_args(cls, arg)
        policy = cls(**kwargs)
    except InputError:
        raise
    except ValueError as error:
        raise InputError("policy", _short(text), str(error)) from error
    except (Exception, SystemExit) as error:  # a user's constructor may raise anything, or exit
        raise InputError("policy", _short(text), f"its constructor failed: {told(error)}") from error
    own = getattr(policy, "text", None)
    # Only a registered class may name itself: one that a user derived from it would print as its parent.
    canonical = own if registered and isinstance(own, str) else write_args(base, kwargs)
    return PolicySpec(canonical, cls, types.MappingProxyType(kwargs), info_of(cls, base))


def told(error: BaseException) -> str:
    """An exception of a user's code in a few words."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
