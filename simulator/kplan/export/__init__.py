"""Engine configs out of a plan: what vLLM and SGLang load, or one line that says why they cannot."""

from kplan.export.engines import SGLANG, VLLM, EngineVersion
from kplan.export.files import Exports, export_engines, plan_json, write_exports, write_plan, write_text
from kplan.export.served import EngineExport, ServedDrafter, ServedModel
from kplan.export.sglang import export_sglang
from kplan.export.vllm import export_vllm

__all__ = [
    "SGLANG",
    "VLLM",
    "EngineExport",
    "EngineVersion",
    "Exports",
    "ServedDrafter",
    "ServedModel",
    "export_engines",
    "export_sglang",
    "export_vllm",
    "plan_json",
    "write_exports",
    "write_plan",
    "write_text",
]
