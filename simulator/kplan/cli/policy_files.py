"""The two files that ``kplan policies new`` writes: a policy of ten lines, and its test."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from pathlib import Path

from kplan.cli.paths import check_folder
from kplan.errors import InputError
from kplan.files import made_folder, write_texts

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")

_POLICY = '''"""A policy of one's own: see kplan.policy for all that a step shows."""

from typing import Annotated

from kplan.policy import StepView
from kplan.space import IntRange


class {cls}:
    """K drafts in small batches, one in larger ones."""

    def __init__(
        self, k: Annotated[int, IntRange(1, 8)] = 3, batch: Annotated[int, IntRange(1, 128)] = 32
    ) -> None:
        self.k, self.batch = k, batch

    def choose_k(self, step: StepView) -> int:
        return self.k if step.batch <= self.batch else 1
'''

_TEST = '''"""{cls} keeps the laws of every policy."""

from pathlib import Path

import pytest

from kplan.testing import LAWS, Law

POLICY = f"{{Path(__file__).with_name('{module}.py')}}:{cls}"


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_it_keeps(law: Law) -> None:
    law.check(POLICY)
'''


@dataclass(frozen=True)
class PolicyFiles:
    """What was written.

    Attributes:
        policy, test: the files.
        text: the policy text that runs it, ``calm_at_load.py:CalmAtLoad``.
    """

    policy: Path
    test: Path
    text: str


def write_policy(name: str, folder: Path) -> PolicyFiles:
    """Write the policy ``name`` and its test into ``folder``, which is made when it is missing.

    Raises:
        InputError: a name that makes no Python module, a file that is there already, or a folder that
            cannot be made.
    """
    module = name.replace("-", "_").lower()
    if _NAME.fullmatch(name) is None or keyword.iskeyword(module):
        raise InputError(
            "name", name, "must be words of letters and digits", "write for example calm-at-load"
        )
    cls = "".join(part[:1].upper() + part[1:] for part in re.split("[-_]", name))
    made = PolicyFiles(
        folder / f"{module}.py", folder / f"test_{module}.py", f"{folder / f'{module}.py'}:{cls}"
    )
    check_folder("--dir", folder)
    for path in (made.policy, made.test):
        if path.exists():
            raise InputError("file", str(path), "is there already", "choose another name or another --dir")
    texts = {made.policy: _POLICY.format(cls=cls), made.test: _TEST.format(cls=cls, module=module)}
    with made_folder("--dir", folder):
        write_texts(texts)
    return made
