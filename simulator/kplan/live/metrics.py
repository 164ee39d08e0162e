"""Prometheus text of a server, as counts that can be subtracted.

Names are the engines' own; :data:`NAMES` maps what kplan asks for to them. Counters only grow while a server
lives, so one that fell says that it was started anew in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from prometheus_client.parser import text_string_to_metric_families

from kplan.errors import InputError

MOST_TEXT = 16 * 2**20
"""Longest metrics text that is read, in characters; a busy vLLM with hundreds of labels writes 0.3 MB."""

NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "vllm": MappingProxyType(
            {
                "drafts": "vllm:spec_decode_num_drafts_total",
                "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
                "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
                "accepted_per_position": "vllm:spec_decode_num_accepted_tokens_per_pos_total",
                "emissions": "vllm:inter_token_latency_seconds_count",
                "emission_s": "vllm:inter_token_latency_seconds_sum",
                "tpot_requests": "vllm:request_time_per_output_token_seconds_count",
                "tpot_s": "vllm:request_time_per_output_token_seconds_sum",
                "ttft_requests": "vllm:time_to_first_token_seconds_count",
                "ttft_s": "vllm:time_to_first_token_seconds_sum",
                "queue_requests": "vllm:request_queue_time_seconds_count",
                "queue_s": "vllm:request_queue_time_seconds_sum",
                "prefill_requests": "vllm:request_prefill_time_seconds_count",
                "prefill_s": "vllm:request_prefill_time_seconds_sum",
                "e2e_requests": "vllm:e2e_request_latency_seconds_count",
                "e2e_s": "vllm:e2e_request_latency_seconds_sum",
                "finished": "vllm:request_success_total",
                "preemptions": "vllm:num_preemptions_total",
                "output_tokens": "vllm:generation_tokens_total",
                "prompt_tokens": "vllm:prompt_tokens_total",
                "steps": "vllm:iteration_tokens_total_count",
                "step_tokens": "vllm:iteration_tokens_total_sum",
                "running": "vllm:num_requests_running",
                "waiting": "vllm:num_requests_waiting",
                "kv_share": "vllm:kv_cache_usage_perc",
            }
        ),
        "sglang": MappingProxyType(
            {
                "drafts": "sglang:spec_verify_calls_total",
                "emissions": "sglang:inter_token_latency_seconds_count",
                "emission_s": "sglang:inter_token_latency_seconds_sum",
                "tpot_requests": "sglang:request_time_per_output_token_seconds_count",
                "tpot_s": "sglang:request_time_per_output_token_seconds_sum",
                "ttft_requests": "sglang:time_to_first_token_seconds_count",
                "ttft_s": "sglang:time_to_first_token_seconds_sum",
                "e2e_requests": "sglang:e2e_request_latency_seconds_count",
                "e2e_s": "sglang:e2e_request_latency_seconds_sum",
                "output_tokens": "sglang:generation_tokens_total",
                "prompt_tokens": "sglang:prompt_tokens_total",
                "running": "sglang:num_running_reqs",
                "waiting": "sglang:num_queue_reqs",
                "kv_share": "sglang:token_usage",
            }
        ),
    }
)
"""Engine -> what kplan calls a figure -> the engine's series. Times in seconds."""

GAUGES = frozenset({"running", "waiting", "kv_share"})
"""Figures that may fall."""

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Snapshot:
    """All series of a server at one moment.

    Attributes:
        engine: ``vllm`` or ``sglang``.
        series: series name -> labels -> value.
    """

    engine: str
    series: Mapping[str, Mapping[Labels, float]]

    def has(self, figure: str) -> bool:
        """Whether the server counts ``figure`` at all."""
        return NAMES[self.engine].get(figure) in self.series

    def total(self, figure: str) -> float:
        """The figure summed over all labels (several engine ranks). Raises InputError when it is missing."""
        return sum(self._labelled(figure).values())

    def by_position(self, figure: str) -> dict[int, float]:
        """The figure by its label ``position``, the other labels summed; series without that label left out.

        Raises InputError when the figure is missing, or a position is no number.
        """
        sums: dict[int, float] = {}
        for labels, value in self._labelled(figure).items():
            at = dict(labels).get("position")
            if at is None:
                continue
            if not (at.isascii() and at.isdigit()):
                raise InputError("metrics of the server", f"position {at!r}", "must be a number from 0")
            sums[int(at)] = sums.get(int(at), 0.0) + value
        return dict(sorted(sums.items()))

    def _labelled(self, figure: str) -> Mapping[Labels, float]:
        name = NAMES[self.engine].get(figure)
        if name is None or name not in self.series:
            raise InputError(
                "metrics of the server",
                name or figure,
                "is not among them",
                "start SGLang with --enable-metrics"
                if self.engine == "sglang"
                else "is it vLLM, with speculation for that figure?",
            )
        return self.series[name]


def read_metrics(text: str, engine: str) -> Snapshot:
    """Parse a server's metrics text.

    Raises:
        InputError: the text is too long, is not in the Prometheus format, or has none of the engine's series.
    """
    if len(text) > MOST_TEXT:
        raise InputError("metrics text", f"{len(text):,} characters", f"at most {MOST_TEXT:,} are read")
    series: dict[str, dict[Labels, float]] = {}
    try:
        for name, labels, value in _samples(text):
            if name.startswith(engine + ":"):
                series.setdefault(name, {})[labels] = value
    except (ValueError, KeyError, IndexError) as error:
        raise InputError(
            "metrics text", text[:40], f"is not in the Prometheus format ({error})", "is the URL a server's?"
        ) from None
    if not series:
        raise InputError(
            "metrics of the server",
            "none",
            f"{engine}'s begin with {engine}:",
            "start SGLang with --enable-metrics" if engine == "sglang" else "is the URL a vLLM server's?",
        )
    return Snapshot(engine, series)


def _samples(text: str) -> Iterator[tuple[str, Labels, float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if isfinite(sample.value):
                yield sample.name, frozenset(sample.labels.items()), float(sample.value)


@dataclass(frozen=True)
class Window:
    """What a server counted between two snapshots.

    Raises:
        InputError: a counter fell, so the server was started anew in between.
    """

    before: Snapshot
    after: Snapshot

    def __post_init__(self) -> None:
        for figure, name in NAMES[self.after.engine].items():
            if figure in GAUGES or name not in self.before.series:
                continue
            if not self.after.has(figure) or self.after.total(figure) < self.before.total(figure):
                raise InputError(
                    f"metrics {name}",
                    f"{self.before.total(figure):g}, then less",
                    "counters only grow: the server was started anew in between",
                    "run it again against a server that stays up",
                )

    def has(self, figure: str) -> bool:
        """Whether the server counts ``figure`` at all."""
        return self.after.has(figure)

    def grown(self, figure: str) -> float:
        """By how much ``figure`` grew (a series that is new started at 0). Raises InputError when missing."""
        before = self.before.total(figure) if self.before.has(figure) else 0.0
        return self.after.total(figure) - before

    def grown_by_position(self, figure: str) -> dict[int, float]:
        """The same of ``figure`` by the label ``position``, in its order."""
        before = self.before.by_position(figure) if self.before.has(figure) else {}
        return {at: value - before.get(at, 0.0) for at, value in self.after.by_position(figure).items()}

    def mean(self, total: str, count: str) -> float | None:
        """Growth of ``total`` per growth of ``count``, for example seconds per request; None of nothing."""
        counted = self.grown(count)
        return self.grown(total) / counted if counted > 0 else None
