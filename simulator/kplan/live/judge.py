"""Predicted beside measured: figures with tolerances, intervals and a verdict each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import numpy as np

from kplan.errors import InputError
from kplan.live.bench_serve import Traffic
from kplan.live.judge_spread import Measure, Spread, median_of, scaled
from kplan.live.metrics import Window
from kplan.live.workload import F64

NEARLY = 0.005
"""Drafts of a mean this near a whole number are taken to be all as long; a lookup's last ones are shorter."""
TOLERANCES: Mapping[str, float] = MappingProxyType(
    {"acceptance": 0.02, "step": 0.1, "tpot": 0.1, "ttft": 0.25, "throughput": 0.1, "batch": 0.1, "k": 0.1}
)
"""Share by which a measured figure may differ from the predicted one."""


class Verdict(StrEnum):
    """What is said of a figure."""

    AGREES = "agrees"
    OFF = "off"
    UNSURE = "cannot tell"


@dataclass(frozen=True)
class Kind:
    """A figure that is judged: its name in words, its unit, and which tolerance it has."""

    title: str
    unit: str
    tolerance: str
    digits: int = 2


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "acceptance_length": Kind("tokens per step and request", "", "acceptance", 3),
        "step_ms": Kind("step time, mean", "ms", "step"),
        "step_median_ms": Kind("step time, median of the step log", "ms", "step"),
        "tpot_ms": Kind("TPOT", "ms", "tpot"),
        "itl_ms": Kind("ITL", "ms", "tpot"),
        "ttft_ms": Kind("TTFT", "ms", "ttft"),
        "output_tok_s": Kind("output tokens per second", "tok/s", "throughput", 1),
        "mean_batch": Kind("requests per step", "", "batch"),
        "drafted": Kind("drafts per draft step (K)", "", "k"),
        "draft_share": Kind("steps that verified a draft, per request-step", "", "k", 3),
        "preemptions": Kind("preemptions per request", "", "k", 3),
    }
)
"""All figures, in the order in which they are shown."""


@dataclass(frozen=True)
class Figure:
    """One figure, predicted and measured.

    Attributes:
        name: key of KINDS.
        predicted: mean over the simulated draws.
        measured: on the server.
        tolerance: share of the predicted value; of a figure predicted to be 0, in its own unit.
    """

    name: str
    predicted: float
    measured: Measure
    tolerance: float

    @property
    def kind(self) -> Kind:
        """What it is called."""
        return KINDS[self.name]

    @property
    def scale(self) -> float:
        """What the tolerance is a share of."""
        return abs(self.predicted) if self.predicted else 1.0

    @property
    def change(self) -> float:
        """Measured over predicted, less 1; of a figure predicted to be 0, the measured value."""
        return (self.measured.value - self.predicted) / self.scale

    @property
    def half(self) -> float | None:
        """Half width of the interval of :attr:`change`."""
        return None if self.measured.half is None else self.measured.half / self.scale

    @property
    def excess(self) -> float:
        """By how many tolerances it surely lies beyond its tolerance; 0 when it may be within."""
        return max(0.0, (abs(self.change) - (self.half or 0.0)) / self.tolerance - 1.0)

    @property
    def verdict(self) -> Verdict:
        """Off when its whole interval is beyond the tolerance; agrees when the value is within, and the
        interval no wider than the tolerance."""
        if self.half is None:
            return Verdict.UNSURE
        if abs(self.change) - self.half > self.tolerance:
            return Verdict.OFF
        sure = abs(self.change) <= self.tolerance and self.half <= self.tolerance
        return Verdict.AGREES if sure else Verdict.UNSURE

    @property
    def words(self) -> str:
        """The verdict as it is shown."""
        if self.verdict is not Verdict.OFF:
            return str(self.verdict)
        if not self.predicted:
            return f"off by {self.change:+.3g}"
        return f"{1 + self.change:.1f} times" if self.change >= 1 else f"off by {self.change:+.0%}"


@dataclass(frozen=True)
class Measurements:
    """What a server did with a load.

    Attributes:
        figures: by name; those that it does not count are left out.
        accepted_at: (K,) share of the drafts whose position 1..K was accepted; empty when it does not say.
        k: the one K of (nearly) every draft; None where it changed, or the server does not say.
        front_s: of the mean TTFT, what the engine did not have the request for: client, HTTP, tokenizer, API
            server. None where the server does not count its queue and its prefills.
    """

    figures: Mapping[str, Measure]
    accepted_at: tuple[float, ...]
    k: int | None
    front_s: float | None = None


def tolerances(given: str | None) -> dict[str, float]:
    """TOLERANCES with those of ``acceptance=0.03,tpot=0.2`` in their place.

    Raises:
        InputError: another name, or no share above 0.
    """
    found = dict(TOLERANCES)
    for pair in given.split(",") if given else ():
        name, _, text = (part.strip() for part in pair.partition("="))
        try:
            share = float(text)
        except ValueError:
            share = 0.0
        if name not in found or not 0.0 < share <= 10.0:
            raise InputError(
                "--tolerance", pair, f"NAME=SHARE, above 0 and at most 10; names: {', '.join(found)}",
                "for example acceptance=0.03,tpot=0.15",
            )  # fmt: skip
        found[name] = share
    return found


def judge(
    predicted: Mapping[str, float], measured: Mapping[str, Measure], bounds: Mapping[str, float]
) -> tuple[Figure, ...]:
    """All figures that were predicted and measured."""
    return tuple(
        Figure(name, predicted[name], measured[name], bounds[kind.tolerance])
        for name, kind in KINDS.items()
        if name in predicted and name in measured
    )


def measurements(
    window: Window, traffic: Traffic, clients: int | None, expected_ttft_s: F64, step_s: F64 | None = None
) -> Measurements:
    """The figures of a window of the server's counters, and of what the load generator saw in it.

    Args:
        clients: of a closed loop; None in an open one.
        expected_ttft_s: (n,) predicted; what all clients' first requests wait for each other is no chance.
        step_s: (m,) seconds of its steps that decode, of a step log.
    """
    spread = Spread(traffic, clients)
    figures: dict[str, Measure] = {}
    steps = window.grown("emissions")
    drafts = window.grown("drafts") if window.has("drafts") else 0.0
    per_step = spread.relative((traffic.output_len - 1).astype(np.float64), traffic.chunks.astype(np.float64))
    if steps > 0:
        tokens = window.grown("output_tokens") - window.grown("ttft_requests")
        figures["acceptance_length"] = scaled(tokens / steps, per_step)
        seconds = spread.relative(traffic.decode_s, traffic.chunks.astype(np.float64))
        figures["step_ms"] = scaled(1e3 * window.grown("emission_s") / steps, seconds)
        figures["draft_share"] = _share(drafts / steps, tokens / steps, per_step)
        sums = float(traffic.decode_s.sum()), float(traffic.chunks.sum())
        figures["itl_ms"] = scaled(1e3 * sums[0] / sums[1], seconds) if sums[1] else Measure(0.0, None)
    figures |= _of_requests(traffic, spread, expected_ttft_s)
    busy = spread.relative(traffic.ttft_s + traffic.decode_s, np.ones(len(traffic), np.float64))
    if window.has("steps") and window.grown("steps") > 0:
        figures["mean_batch"] = scaled(
            (steps + window.grown("ttft_requests")) / window.grown("steps"), 0.0 if clients == 1 else busy
        )
    if window.has("preemptions"):
        figures["preemptions"] = Measure(window.grown("preemptions") / len(traffic), 0.0)
    if step_s is not None:
        figures["step_median_ms"] = median_of(1e3 * step_s)
    accepted_at: tuple[float, ...] = ()
    k = None
    if drafts > 0 and window.has("draft_tokens"):
        drafted = window.grown("draft_tokens") / drafts
        figures["drafted"] = Measure(drafted, 0.0)
        by_position = window.grown_by_position("accepted_per_position")
        accepted_at = tuple(accepted / drafts for accepted in by_position.values())
        if abs(drafted - round(drafted)) < NEARLY:
            k = round(drafted)
            accepted_at = accepted_at[:k]
    return Measurements(figures, accepted_at, k, _front_s(window, traffic))


def _front_s(window: Window, traffic: Traffic) -> float | None:
    """See :attr:`Measurements.front_s`."""
    if not (window.has("queue_s") and window.has("prefill_s")):
        return None
    parts = window.mean("queue_s", "queue_requests"), window.mean("prefill_s", "prefill_requests")
    if None in parts:
        return None
    return max(0.0, float(traffic.ttft_s.mean()) - sum(part for part in parts if part is not None))


def _share(share: float, tokens_per_step: float, relative: float | None) -> Measure:
    """Share of the steps that drafted; where not all did, it is as uncertain as the tokens they gained."""
    if share in (0.0, 1.0):
        return Measure(share, 0.0)
    gain = max(tokens_per_step - 1.0, 1e-9) / tokens_per_step
    return scaled(share, None if relative is None else relative / gain)


def _of_requests(traffic: Traffic, spread: Spread, expected_ttft_s: F64) -> dict[str, Measure]:
    """Figures that clients see."""
    figures: dict[str, Measure] = {}
    later = traffic.output_len > 1
    tpot = traffic.decode_s[later] / (traffic.output_len[later] - 1)
    if len(tpot):
        figures["tpot_ms"] = spread.mean(1e3 * tpot, later)
    waited = spread.relative(traffic.ttft_s, expected_ttft_s)
    figures["ttft_ms"] = scaled(1e3 * float(traffic.ttft_s.mean()), waited)
    served = spread.relative(traffic.output_len.astype(np.float64), traffic.ttft_s + traffic.decode_s)
    figures["output_tok_s"] = scaled(float(traffic.output_len.sum()) / traffic.duration_s, served)
    return figures
