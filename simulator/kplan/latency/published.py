"""Published step timings that host costs are inferred from: the file beside the calibrations.

The file holds figures with their sources; it is read here, at the edge, into validated records.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, ValidationError

from kplan.config.record import Record
from kplan.errors import InputError
from kplan.files import read_text
from kplan.latency.fit_figures import file_source
from kplan.plainyaml import MOST_BYTES, load_yaml

SHIPPED = "calibrations/published/vllm-h100-host.yaml"

Positive = Annotated[float, Field(gt=0)]


class Entry(Record):
    """A part of the host's timings."""


class SweepRow(Entry):
    """Mean TPOT of single requests at one K; step time = TPOT x acceptance length (bonus included)."""

    source: str
    model: str
    proposer: str | None = None
    k: Annotated[int, Field(ge=0)]
    tpot_ms: Positive
    acceptance_length: Annotated[float, Field(ge=1)]

    @property
    def step_s(self) -> float:
        return self.tpot_ms * self.acceptance_length * 1e-3


class ShareRow(Entry):
    """How the time of all steps divides, in percent."""

    source: str
    model: str
    tp: Annotated[int, Field(ge=1)]
    proposer: str | None = None
    k: Annotated[int, Field(ge=0)]
    batch: Annotated[int, Field(ge=1)]
    drafting: Annotated[float, Field(ge=0)]
    verification: Positive
    sampling: Positive
    overhead: Positive


class LinearRow(Entry):
    """A published linear model of steps measured inside the engine.

    Overhead per step; drafting of all ``k`` passes, fixed, per input token of one request and per KV token;
    verification, fixed, per batched token and per KV token; a lookup as a share of verification. ``batches``
    are the batch sizes it was fitted on.
    """

    source: str
    model: str
    proposer: str
    k: Annotated[int, Field(ge=1)]
    batches: Annotated[tuple[int, ...], Field(min_length=1)]
    overhead_s: Positive
    draft_fixed_s: Positive
    draft_token_s: Positive
    draft_kv_token_s: Positive
    lookup_share: Positive
    verify_fixed_s: Positive
    verify_token_s: Positive
    verify_kv_token_s: Positive

    def verify_s(self, tokens: int, kv_tokens: int) -> float:
        """Seconds of the target pass over ``tokens`` that reads ``kv_tokens``."""
        return self.verify_fixed_s + self.verify_token_s * tokens + self.verify_kv_token_s * kv_tokens


class LoopRow(Entry):
    """Mean TPOT of a closed loop of ``concurrency`` clients without speculation, scheduled synchronously."""

    source: str
    model: str
    tp: Annotated[int, Field(ge=1)]
    prompt_tokens: Annotated[int, Field(ge=1)]
    output_tokens: Annotated[int, Field(ge=2)]
    concurrency: Annotated[int, Field(ge=1)]
    tpot_ms: Positive


class HostTimings(Entry):
    """The file; ``hardware`` is the GPU's profile name, ``file`` what a figure fitted on it names."""

    hardware: str
    file: str = ""
    sources: dict[str, str]
    k_sweep: tuple[SweepRow, ...]
    shares: tuple[ShareRow, ...]
    linear: LinearRow
    loops: tuple[LoopRow, ...]


def load_host_timings(path: Path | None = None) -> HostTimings:
    """The shipped file, or another of the same form. Raises InputError naming the key that is wrong."""
    try:
        found = path or Path(str(files("kplan_profiles") / SHIPPED))
        content = load_yaml(read_text("host timings", found, MOST_BYTES))
        return HostTimings.model_validate(content).model_copy(update={"file": file_source(found)})
    except yaml.YAMLError as error:
        raise InputError("host timings", str(path), "is not valid YAML", str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            "host timings", str(path or SHIPPED), f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from error
