"""Prometheus text of a server, as counts that can be subtracted.

Names are the engines' own; :data:`NAMES` maps what kplan asks for to them. Counters only grow while a server
lives, so one that fell says that it was started anew in between; so does another moment of its birth, which
shows a restart after which it has counted more than before.
"""

from __future__ import annotations

import re
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
BORN = "process_start_time_seconds"
"""Series of the Python client: when the process began. One that shares its counters with others has none."""
MOST_SERIES = 20_000
"""Series of kplan's names that are read; a server with 64 ranks has some 3,000."""
_MOST_POSITION = 10_000
_NAME = re.compile(r"[{ \t]")
_READ: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        engine: frozenset({*names.values(), BORN, f"{engine}:cache_config_info"})
        for engine, names in NAMES.items()
    }
)
_COUNTERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        engine: frozenset(name for figure, name in names.items() if figure not in GAUGES)
        for engine, names in NAMES.items()
    }
)

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Snapshot:
    """What a server counted up to one moment.

    Attributes:
        engine: ``vllm`` or ``sglang``.
        series: series name, of those that kplan reads -> labels -> value.
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
            if not (at.isascii() and at.isdigit() and len(at) < 6 and int(at) < _MOST_POSITION):
                bound = f"must be a number from 0 and below {_MOST_POSITION:,}"
                raise InputError("metrics of the server", f"position {at[:40]!r}", bound)
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
        InputError: the text is too long, is not in the Prometheus format, has none of the engine's series, or
            one whose value is no count, or that has two.
    """
    if len(text) > MOST_TEXT:
        raise InputError("metrics text", f"{len(text):,} characters", f"at most {MOST_TEXT:,} are read")
    series: dict[str, dict[Labels, float]] = {}
    try:
        for name, labels, value in _samples(_own_lines(text, engine)):
            _take(series.setdefault(name, {}), name, labels, value, engine)
    except (ValueError, KeyError, IndexError) as error:
        raise InputError(
            "metrics text", text[:40], f"is not in the Prometheus format ({error})", "is the URL a server's?"
        ) from None
    if not series.keys() - {BORN}:
        raise InputError(
            "metrics of the server",
            "none",
            f"{engine}'s begin with {engine}:",
            "start SGLang with --enable-metrics" if engine == "sglang" else "is the URL a vLLM server's?",
        )
    return Snapshot(engine, {name: values for name, values in series.items() if values})


def _own_lines(text: str, engine: str) -> str:
    """The lines of the series that kplan reads: parsing all that a server tells can take minutes.

    Raises:
        InputError: there are more of them than MOST_SERIES.
    """
    read = _READ[engine]
    lines = [line for line in text.split("\n") if _NAME.split(line.lstrip(), 1)[0] in read]
    if len(lines) > MOST_SERIES:
        raise InputError(
            "metrics of the server", f"{len(lines):,} series", f"at most {MOST_SERIES:,} are read",
            "is the URL a server's?",
        )  # fmt: skip
    return "".join(f"{line}\n" for line in lines)


def _take(known: dict[Labels, float], name: str, labels: Labels, value: float, engine: str) -> None:
    """Add a sample. Raises InputError for a counter that counts nothing, and for two values of one series."""
    if not isfinite(value) or value < 0:
        if name not in _COUNTERS[engine]:
            return  # a gauge of nothing yet
        raise InputError(f"metrics {name}", value, "a counter is a number from 0", "look at the server's log")
    if known.setdefault(labels, value) != value:
        bound = f"stands there twice, with {known[labels]:g} too"
        raise InputError(f"metrics {name}", f"{value:g}", bound, "ask one server, not several behind one URL")


def _samples(text: str) -> Iterator[tuple[str, Labels, float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, frozenset(sample.labels.items()), float(sample.value)


@dataclass(frozen=True)
class Window:
    """What a server counted between two snapshots.

    Raises:
        InputError: a counter fell or is gone, or another process answers: the server was started anew.
    """

    before: Snapshot
    after: Snapshot

    def __post_init__(self) -> None:
        for name in sorted(_COUNTERS[self.after.engine] | {BORN}):
            after = self.after.series.get(name, {})
            for labels, value in self.before.series.get(name, {}).items():
                now = after.get(labels)
                if now is None or now < value or (name == BORN and now != value):
                    raise InputError(
                        f"metrics {name}",
                        f"{value:.14g}, then {'nothing' if now is None else f'{now:.14g}'}",
                        "counters only grow: the server was started anew in between"
                        if name != BORN
                        else "the process is another: the server was started anew in between",
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
