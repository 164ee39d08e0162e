"""Engine configs out of a plan, and a plan's questions out of an engine config.

What vLLM and SGLang load, or one line that says why they cannot; what a running config makes them do; and
what a real engine's own code says of either.
"""

from kplan.export.against_model import against_model, largest_k
from kplan.export.check import Case, Verdict, check, choose_engine, engines_of, version_warning
from kplan.export.current import CurrentConfig, Finding, Severity
from kplan.export.engines import ENGINES, SGLANG, VLLM, EngineVersion, release_of
from kplan.export.files import Exports, export_engines, plan_json, write_exports, write_plan
from kplan.export.read_config import Source, source_of_command, source_of_file
from kplan.export.served import EngineExport, ServedDrafter, ServedModel
from kplan.export.sglang import export_sglang
from kplan.export.vllm import export_vllm

__all__ = [
    "ENGINES",
    "SGLANG",
    "VLLM",
    "Case",
    "CurrentConfig",
    "EngineExport",
    "EngineVersion",
    "Exports",
    "Finding",
    "ServedDrafter",
    "ServedModel",
    "Severity",
    "Source",
    "Verdict",
    "against_model",
    "check",
    "choose_engine",
    "engines_of",
    "export_engines",
    "export_sglang",
    "export_vllm",
    "largest_k",
    "plan_json",
    "release_of",
    "source_of_command",
    "source_of_file",
    "version_warning",
    "write_exports",
    "write_plan",
]
