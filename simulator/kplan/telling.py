"""How long work says where it is: what is being done, and where it is counted, how much of it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Tell(Protocol):
    """What long work calls. Whoever listens may raise, to end the work."""

    def __call__(self, doing: str, done: int = 0, of: int = 0, /) -> None:
        """Say what is being done.

        Args:
            doing: a few words.
            done, of: how much of it is done, of how much; 0 of 0 where nobody knows.
        """
        ...


def silent(_doing: str, _done: int = 0, _of: int = 0, /) -> None:
    """Nobody listens to what one is ``doing``, how much of it is ``done``, and ``of`` how much."""


def counted(tell: Tell, doing: str, of: int) -> Callable[[], None]:
    """Say what one is ``doing``, and that nothing of it (``of`` in all) is done yet.

    Returns:
        a function of which each call says that one more is.
    """
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        tell(doing, done, of)

    tell(doing, 0, of)
    return one_more
