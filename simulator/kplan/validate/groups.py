"""Tables that are judged together: one figure or one campaign that is spread over several of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any

from pydantic import Field

from kplan.profiles.schema import Entry
from kplan.validate.judge import errors_of, merits, passed, sign_ok
from kplan.validate.table import Judged, JudgedTable, Metric, Target

FILE = "published/groups.json"


class Group(Entry):
    """Member tables by name, and what their rows must reach together."""

    name: str
    title: str
    members: Annotated[tuple[str, ...], Field(min_length=1)]
    target: Target


@dataclass(frozen=True)
class JudgedGroup(Judged):
    """The rows of all members, judged together; they compare no K."""

    group: Group


def shipped_groups() -> tuple[Group, ...]:
    """The groups of the shipped tables."""
    content = json.loads((files("kplan_profiles") / FILE).read_text("utf-8"))
    return tuple(Group.model_validate(each) for each in content)


def judge_groups(judged: Sequence[JudgedTable]) -> tuple[JudgedGroup, ...]:
    """Every shipped group whose members are all among ``judged``."""
    by_name = {one.table.name: one for one in judged}
    return tuple(
        _judge(group, [by_name[name] for name in group.members])
        for group in shipped_groups()
        if set(group.members) <= by_name.keys()
    )


def _judge(group: Group, members: Sequence[JudgedTable]) -> JudgedGroup:
    rows = tuple(row for one in members for row in one.rows)
    mape, worst, bias = errors_of([row for row in rows if row.counts])
    signs = [
        (row, one.table.precision)
        for one in members
        if one.table.metric is Metric.SPEEDUP
        for row in one.rows
        if row.counts
    ]
    sign = sign_ok(signs)
    return JudgedGroup(
        rows=rows,
        mape=mape,
        worst=worst,
        bias=bias,
        sign_ok=sign,
        best_k_regret=None,
        passed=passed(group.target, mape, worst, sign, None),
        group=group,
    )


def record(judged: JudgedGroup) -> dict[str, Any]:
    """One group as JSON, in the form of a table."""
    return {
        "name": judged.group.name,
        "title": judged.group.title,
        "members": list(judged.group.members),
        **merits(judged, judged.group.target),
    }
