"""Plans and their exports as files: written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kplan.config.plan import Plan
from kplan.errors import InputError
from kplan.export.engines import SGLANG, VLLM
from kplan.export.served import EngineExport, ServedDrafter, ServedModel, UnnamedWeightsError
from kplan.export.sglang import export_sglang
from kplan.export.vllm import export_vllm
from kplan.files import made_folder, write_texts

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
    """The plan for every engine that can run it; without the weights of a drafter there is no engine.

    Raises:
        InputError: the engine that the plan was made for cannot run it.
    """
    engines: dict[str, EngineExport] = {}
    refused: dict[str, str] = {}
    for name, export in ((VLLM.name, export_vllm), (SGLANG.name, export_sglang)):
        try:
            engines[name] = export(plan, model, drafter)
        except UnnamedWeightsError as error:
            refused[name] = str(error)
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

    Every text is made, and written beside its place, before the first file is moved: a failure leaves the
    folder as it was. plan.json is the mark of the whole: where it stands after a kill, all files are of one
    plan. A file of an earlier plan that this one does not have is removed: the folder holds one plan.

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
    return write_exports(plan, export_engines(plan, model, drafter), out_dir, report_html=report_html)


def write_exports(
    plan: Plan,
    exports: Exports,
    out_dir: Path,
    *,
    report_html: str | None = None,
    beside: Mapping[str, str | bytes] | None = None,
) -> list[Path]:
    """As :func:`write_plan`, from exports made before and ``report_html``, if any.

    Args:
        beside: file name -> text or bytes of more of the same run, written with the plan or not at all.

    Returns:
        Paths of the plan's own files.

    Raises:
        InputError: the folder cannot be written.
    """
    texts = {PLAN_FILE: plan_json(plan), **exports.files}
    if report_html is not None:
        texts[REPORT_FILE] = report_html
    contents = {out_dir / name: content for name, content in (texts | dict(beside or {})).items()}
    with made_folder("output folder", out_dir):
        write_texts(contents, [out_dir / name for name in _ENGINE_FILES if name not in texts])
    return [out_dir / name for name in texts]


def plan_json(plan: Plan) -> str:
    """The text of plan.json."""
    return plan.model_dump_json(indent=2) + "\n"
