"""What a page asks: a frozen record, written to its address and read back from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from pydantic import Field, ValidationError, field_validator

from kplan.config.record import Record
from kplan.config.scenario import Scenario, make_scenario
from kplan.dashboard import catalog
from kplan.errors import InputError
from kplan.profiles.load import close

LONGEST_QUERY = 1024
"""Characters of a query string that are read."""
_SHOWN = 40
"""Characters of a refused value that are said back."""


@dataclass(frozen=True)
class Knob:
    """A number of the page: a slider on a logarithmic scale (a plain one where ``linear``) and a field.

    Attributes:
        low, high: bounds of the field, and ends of the slider.
        none: what an empty field means; "" where a number is needed.
    """

    name: str
    label: str
    unit: str
    low: float
    high: float
    none: str = ""
    linear: bool = False


@dataclass(frozen=True)
class Files:
    """Files named where the dashboard is started; a page names none.

    Attributes:
        traces: recorded acceptance and lengths in place of the workload's; None: the workload's.
        drafter: as ``--drafter`` of ``kplan recommend``; None: the proposer's profile.
    """

    traces: Path | None = None
    drafter: str | None = None


OWN = Files()
"""No file: shipped profiles alone."""
KNOBS = (
    Knob("qps", "load", "requests/s", 0.1, 1000),
    Knob("clients", "or clients", "in a closed loop", 1, 256, none="open loop"),
    Knob("prompt", "prompt length", "tokens", 1, 100_000, none="workload's"),
    Knob("output", "output length", "tokens", 2, 4096, none="workload's"),
    Knob("acceptance", "accepted drafts, against the workload's", "%", -20, 20, linear=True),
    Knob("slo_tpot", "SLO on TPOT", "ms", 1, 500, none="no SLO"),
    Knob("slo_ttft", "SLO on TTFT", "ms", 10, 60_000, none="no SLO"),
)
CHOICES = ("model", "hardware", "proposer", "workload", "engine")
"""Fields of a :class:`State` that are names of profiles."""


def _bounded(name: str) -> Any:
    """The bounds of a knob, for pydantic."""
    knob = next(knob for knob in KNOBS if knob.name == name)
    return Field(ge=knob.low, le=knob.high, allow_inf_nan=False)


class State(Record):
    """A question: a load on a model, and how its acceptance differs from the workload's.

    Attributes:
        qps: requests/s, Poisson arrivals.
        clients: of a closed loop, each with one request in flight, in place of ``qps``; None: open loop.
        prompt, output: constant lengths in tokens; None: the workload's.
        acceptance: percent by which more (or fewer) drafts are accepted per step.
        slo_tpot, slo_ttft: ms that 90% of the requests must meet.
    """

    qps: Annotated[float, _bounded("qps")] = 64.0
    clients: Annotated[int | None, _bounded("clients")] = None
    prompt: Annotated[int | None, _bounded("prompt")] = None
    output: Annotated[int | None, _bounded("output")] = None
    acceptance: Annotated[int, _bounded("acceptance")] = 0
    slo_tpot: Annotated[float | None, _bounded("slo_tpot")] = None
    slo_ttft: Annotated[float | None, _bounded("slo_ttft")] = None
    model: str = "llama-3.1-8b"
    hardware: str = "h100-sxm"
    tp: int = 1
    proposer: str = "eagle3"
    workload: str = "sharegpt"
    engine: str = "vllm"

    @field_validator("tp")
    @classmethod
    def _offered(cls, value: int) -> int:
        if value not in catalog.TP:
            raise ValueError(f"input should be one of {', '.join(map(str, catalog.TP))}")
        return value

    @field_validator(*CHOICES)
    @classmethod
    def _listed(cls, value: str, info: Any) -> str:
        known = catalog.names(info.field_name)
        if value not in known:
            hint = close(value[:_SHOWN], list(known))
            raise ValueError("; ".join(filter(None, [f"known: {', '.join(known)}", hint])))
        return value

    @classmethod
    def of(cls, values: dict[str, Any]) -> State:
        """A state of these values, numbers as text or as numbers; what is left out has its default.

        Raises:
            InputError: an unknown key, a name that is not listed, or a number out of its bounds.
        """
        try:
            return cls(**values)
        except ValidationError as error:
            raise _first_fault(error) from None

    @classmethod
    def from_query(cls, text: str) -> State:
        """The state of a query string, with or without its question mark.

        Raises:
            InputError: see :meth:`of`; too long, no query string, or a key given twice.
        """
        text = text.removeprefix("?")
        if len(text) > LONGEST_QUERY:
            fix = "use the address that the page wrote"
            raise InputError("address", f"{len(text)} characters", f"{LONGEST_QUERY} are read", fix)
        try:
            pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), errors="strict")
        except ValueError:
            raise InputError(
                "address", text[:_SHOWN], "is no query string", "start anew without it"
            ) from None
        values = dict(pairs)
        if len(values) < len(pairs):
            raise InputError("address", text[:_SHOWN], "gives a key twice", "leave one out")
        return cls.of(values)

    def query(self) -> str:
        """The query string, of what differs from the defaults alone: one state has one address."""
        changed = self.model_dump(exclude_defaults=True)
        return urlencode({key: _text(value) for key, value in changed.items() if value is not None})

    @property
    def load(self) -> str:
        """The load in words."""
        return f"{self.qps:g} requests/s" if self.clients is None else f"{self.clients} clients"

    def scenario(self, replications: int, files: Files = OWN) -> Scenario:
        """The scenario of the question, as many times; the acceptance is moved elsewhere.

        Raises:
            InputError: values that do not go together, or an acceptance moved that was recorded.
        """
        if files.traces is not None and self.acceptance != 0:
            raise InputError(
                "acceptance",
                f"{self.acceptance:+d}%",
                "that of recorded traces is not moved",
                "leave it at 0",
            )
        lengths = {"prompt_tokens": self.prompt, "output_tokens": self.output}
        slos = {"slo_tpot_ms": self.slo_tpot, "slo_ttft_ms": self.slo_ttft}
        names = {name: getattr(self, name) for name in (*CHOICES, "tp")}
        load = {"qps": self.qps} if self.clients is None else {"concurrency": self.clients}
        given = {"traces": files.traces, "drafter": files.drafter, "replications": replications}
        return make_scenario({**load, **lengths, **slos, **names, **given}, "the page")


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _first_fault(error: ValidationError) -> InputError:
    fault = error.errors(include_url=False)[0]
    key = str(fault["loc"][0])[:_SHOWN]
    if fault["type"] == "extra_forbidden":
        return InputError("address: key", key, "is not known", f"known: {', '.join(State.model_fields)}")
    message = fault["msg"].removeprefix("Value error, ")
    return InputError(key, str(fault["input"])[:_SHOWN], message[0].lower() + message[1:])
