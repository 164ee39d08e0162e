"""Plans and their exports as files: written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kplan.config.plan import Plan
from kplan.errors import InputError
from kplan.export.engines import SGLANG, VLLM
from kplan.export.served import EngineExport, ServedDrafter, ServedModel
from kplan.export.sglang import export_sglang
from kplan.export.vllm import export_vllm

PLAN_FILE, REPORT_FILE = "plan.json", "report.html"
_ENGINE_FILES = ("vllm.yaml", "sglang.yaml", "sglang_adaptive.json")


@dataclass(frozen=True)
class Exports:
    """A plan for every engine.

    Attributes:
        engines: engine name -> its files, for the engines that can run the plan.
        refused: engine name -> why it cannot.
    """

    engines: Mapping[str, EngineExport]
    refused: Mapping[str, str]

    @property
    def files(self) -> dict[str, str]:
        """File name -> text, of all engines."""
        return {name: text for export in self.engines.values() for name, text in export.files.items()}


def export_engines(plan: Plan, model: ServedModel, drafter: ServedDrafter | None) -> Exports:
    """The plan for every engine that can run it.

    Raises:
        InputError: the engine that the plan was made for cannot run it.
    """
    engines: dict[str, EngineExport] = {}
    refused: dict[str, str] = {}
    for name, export in ((VLLM.name, export_vllm), (SGLANG.name, export_sglang)):
        try:
            engines[name] = export(plan, model, drafter)
        except InputError as error:
            if name == plan.question.engine:
                raise
            refused[name] = str(error)
    return Exports(engines, refused)


def write_plan(
    plan: Plan,
    out_dir: Path,
    model: ServedModel,
    drafter: ServedDrafter | None,
    *,
    report_html: str | None = None,
) -> list[Path]:
    """Write plan.json, vllm.yaml, sglang.yaml, sglang_adaptive.json and, when given, report.html.

    Every text is made before the first file is touched, and each file is replaced in one move, so a failure
    or a kill leaves whole files only. A file of an earlier plan that this one does not have is removed: the
    folder holds one plan.

    Args:
        plan: what to write.
        out_dir: folder, made when missing.
        model: target weights.
        drafter: proposer, None when nothing is drafted.
        report_html: the report as text (:func:`kplan.report.render_report`).

    Returns:
        Paths written, plan.json first.

    Raises:
        InputError: the plan's own engine cannot run it, or the folder cannot be written.
    """
    texts = {PLAN_FILE: plan_json(plan), **export_engines(plan, model, drafter).files}
    if report_html is not None:
        texts[REPORT_FILE] = report_html
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        written = [write_text(out_dir / name, text) for name, text in texts.items()]
        for name in _ENGINE_FILES:
            if name not in texts:
                (out_dir / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            "output folder", str(out_dir), f"cannot be written ({error.strerror})", "give another --out"
        ) from error
    return written


def plan_json(plan: Plan) -> str:
    """The text of plan.json.

    Raises:
        ValueError: the plan holds a NaN or an infinity, which JSON cannot say.
    """
    text = plan.model_dump_json(indent=2) + "\n"
    try:
        same = Plan.model_validate_json(text) == plan
    except ValidationError:
        same = False
    if not same:
        raise ValueError(
            "the plan holds a number that JSON cannot (NaN or infinity); use None for what is unknown"
        )
    return text


def write_text(path: Path, text: str) -> Path:
    """Replace ``path`` by ``text`` in one move, with the permissions of a new file. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
