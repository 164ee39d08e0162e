"""The API page: HTML that opens with the network off, from the docstrings of the modules named here.

Public is what a package names in ``__all__``, and of a module without it each name that it defines and that
begins with no underscore.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import typing
from dataclasses import dataclass
from pathlib import Path

import pdoc.doc
import pdoc.render

_HIDDEN = "@private"  # pdoc's mark of a member that is not shown
_TOKENS = re.findall(r"\w+|\.{3}|\W", "numpy.ndarray[tuple[typing.Any,...],numpy.dtype[numpy.TYPE]]")
_ARRAY = re.compile(r"(?:<[^>]+>|\s)*".join(map(re.escape, _TOKENS)).replace("TYPE", r"(\w+)"))
"""An array's type as it is spelled out in a page, marked up or not."""

POLICIES = (
    "table", "heuristic", "sglang_ema", "sglang_ladder", "goodput", "request_ema", "position_ema",
    "confidence", "hazard_cost", "bandit", "budget", "throughput_aware", "context_table", "probe", "band",
    "combined", "oracle",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Modules that answer one question of a reader."""

    title: str
    words: str
    modules: tuple[str, ...]


PARTS = (
    Part(
        "Write a policy",
        "What a policy sees and answers, the ranges a search varies, the laws it must keep; those built in.",
        (
            "kplan.policy", "kplan.space", "kplan.registry", "kplan.testing", "kplan_policies",
            *(f"kplan_policies.{name}" for name in POLICIES),
        ),
    ),
    Part(
        "Ask a question",
        "A scenario is the question and a plan its answer; all that the commands do can be done from Python.",
        (
            "kplan.config", "kplan.config.scenario", "kplan.config.plan", "kplan.config.evidence",
            "kplan.search", "kplan.search.single", "kplan.search.optimize", "kplan.search.board",
            "kplan.search.board_cells", "kplan.search.board_rows", "kplan.report", "kplan.telling",
        ),
    ),
    Part(
        "Simulate",
        "Requests drawn, served step by step and measured.",
        ("kplan.simulate", "kplan.engine", "kplan.metrics", "kplan.workload", "kplan.rng"),
    ),
    Part(
        "What drafters accept",
        "Traces recorded, imported and replayed, and models fitted on them.",
        ("kplan.acceptance",),
    ),
    Part(
        "What a step costs",
        "Models, GPUs, drafters and engines as files, and the seconds of a step.",
        ("kplan.profiles", "kplan_profiles", "kplan.latency", "kplan.provenance"),
    ),
    Part(
        "Engines",
        "Configs that vLLM and SGLang load, and servers recorded, calibrated and verified.",
        ("kplan.export", "kplan.live", "kplan.live.record", "kplan.live.calibrate", "kplan.live.verify"),
    ),
    Part(
        "Trust",
        "Predictions beside published measurements, the simulator's own speed, and what is raised.",
        ("kplan.validate", "kplan.validate.table", "kplan.validate.run", "kplan.bench", "kplan.errors"),
    ),
)  # fmt: skip


def build(out: Path) -> None:
    """Write ``index.html``, a page a module and a search index to ``out``, in place of what it holds."""
    modules = {name: _module(name) for part in PARTS for name in part.modules}
    pdoc.render.configure(
        docformat="google", show_source=False, template_directory=Path(__file__).parent / "templates"
    )
    pdoc.render.env.globals["parts"] = PARTS
    pages = {
        f"{name.replace('.', '/')}.html": pdoc.render.html_module(it, modules) for name, it in modules.items()
    }
    pages["index.html"] = pdoc.render.html_index(modules)
    pages = {name: _ARRAY.sub(r"NDArray[\1]", text) for name, text in pages.items()}
    pages["search.js"] = pdoc.render.search_index(modules)
    shutil.rmtree(out, ignore_errors=True)
    for name, text in pages.items():
        page = out / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")


def _module(name: str) -> pdoc.doc.Module:
    """A module to document: classes and functions first, constants after them."""
    module = pdoc.doc.Module(importlib.import_module(name))
    for member in module.members.values():
        if isinstance(member, pdoc.doc.Class):
            _tidy(member)
    module.members = dict(sorted(module.members.items(), key=lambda item: item[1].kind == "variable"))
    return module


def _tidy(cls: pdoc.doc.Class) -> None:
    """Leave out what says nothing: fields that the constructor shows, the constructor of a protocol."""
    for name, member in cls.members.items():
        if (name == "__init__" and getattr(cls.obj, "_is_protocol", False)) or (
            name in getattr(cls.obj, "__dataclass_fields__", ()) and not member.docstring
        ):
            member.docstring = _HIDDEN
        elif isinstance(member, pdoc.doc.Variable) and "PydanticUndefined" in member.default_value_str:
            member.default_value_str = ""
    if issubclass(cls.obj, tuple):  # a named tuple's constructor has its types as text, of no module
        cls.obj.__new__.__annotations__ = typing.get_type_hints(cls.obj)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the pages; what it holds is replaced"
    )
    build(parser.parse_args().out)
