"""What the command line advises, in the words of the page: a control, or the command that has the option."""

from __future__ import annotations

import re

from kplan.dashboard.state import CHOICES, KNOBS

_FIELDS = {
    "--qps": "qps", "--concurrency": "clients", "--prompt-tokens": "prompt", "--output-tokens": "output",
    "--slo-tpot-ms": "slo_tpot", "--slo-ttft-ms": "slo_ttft",
}  # fmt: skip
_LABELS = {knob.name: knob.label for knob in KNOBS}
_CONTROLS = (
    {option: _LABELS[name] for option, name in _FIELDS.items()}
    | {f"--{name}": name for name in CHOICES}
    | {"--tp": "tensor parallel"}
)
_AT_START = frozenset(("--traces", "--drafter"))
"""Options of ``kplan dashboard`` itself."""
_ADVICE = re.compile(r"\bkplan [a-z][^;,()`]*|(?<![\w-])--[a-z][a-z-]*[a-z]")
"""A command with its options, which stays as it is, or an option alone."""


def on_page(text: str) -> str:
    """``text`` with each option as the control that sets it, else after the command that has it."""

    def said(found: re.Match[str]) -> str:
        advice = found[0]
        if advice.startswith("kplan"):
            return advice
        command = "dashboard" if advice in _AT_START else "recommend"
        return _CONTROLS.get(advice, f"kplan {command} {advice}")

    return _ADVICE.sub(said, text)
