"""Plans and what is written beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kplan.cli.output import tell_other_versions
from kplan.config.plan import Plan
from kplan.config.scenario import check_one_proposer
from kplan.errors import InputError
from kplan.export import Exports, export_engines, write_exports
from kplan.files import read_text
from kplan.formats import PLAN
from kplan.plainjson import check_version
from kplan.profiles import load_drafter, load_model
from kplan.report import render_report

MOST_BYTES = 2**26
"""Largest plan.json that is read; one of many policies has 1 MB."""


def read_plan(path: Path) -> Plan:
    """Read plan.json; one of other versions is told on stderr.

    Raises:
        InputError: not there, truncated, another schema version, or what ``kplan simulate`` printed.
    """
    text = read_text("plan", path, MOST_BYTES)
    try:
        check_version(text, PLAN, path)
        plan = Plan.model_validate_json(text)
    except ValidationError as err:
        if _is_of_simulate(text):
            raise InputError(
                "plan", str(path), "is one policy at one load, as kplan simulate --json prints it: no plan",
                "ask the same with kplan recommend --out DIR",
            ) from None  # fmt: skip
        fault = err.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the file"
        raise InputError(
            "plan", str(path), f"{where}: {fault['msg']}", "write it anew with kplan recommend --out"
        ) from None
    tell_other_versions(path.name, plan.versions)
    return plan


def _is_of_simulate(text: str) -> bool:
    """Whether the text is what ``kplan simulate --json`` prints."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.keys() >= {"name", "tpot_ms", "mean_k", "k_share"}


def write_out(plan: Plan, out: Path, beside: Mapping[str, str | bytes] | None = None) -> Written:
    """Write plan.json, the engine configs and report.html, and what is ``beside`` them, by file name.

    Raises:
        InputError: a plan of several proposers, which no engine runs, or of names that are not known.
    """
    check_one_proposer(plan.question.proposer)
    model = load_model(plan.question.model)
    drafter = load_drafter(plan.question.proposer, model, plan.question.drafter)
    exports = export_engines(plan, model, drafter)
    paths = write_exports(plan, exports, out, report_html=render_report(plan), beside=beside)
    return Written(paths, exports)


@dataclass(frozen=True)
class Written:
    """Files of one plan, and what a user must know of them."""

    paths: list[Path]
    exports: Exports

    def record(self) -> dict[str, Any]:
        """As JSON: files, and by engine the command to start it and the notes, or why it was refused."""
        return {
            "files": [str(path) for path in self.paths],
            "engines": {
                name: {
                    "version": one.version,
                    "command": one.command,
                    "command_line": one.command_line,
                    "speculative_config": one.speculative_json,
                    "proposal": [list(row) for row in one.proposal],
                    "notes": list(one.notes),
                }
                for name, one in self.exports.engines.items()
            },
            "refused": dict(self.exports.refused),
        }

    def lines(self) -> list[str]:
        """The same for a person."""
        lines = [f"wrote {path}" for path in self.paths]
        for name, one in self.exports.engines.items():
            lines.append(f"{name} {one.version}: {one.command}")
            lines.append(f"  or: {one.command_line}")
            lines += [f"  note: {note}" for note in one.notes]
        return lines + [f"{name}: not written: {why}" for name, why in self.exports.refused.items()]
