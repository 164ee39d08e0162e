"""What the fake server counted, as its engine tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.live_fake.fake_kind import Engine, Faults


@dataclass
class Counts:
    """What was counted, in the names of kplan.

    Attributes:
        engine, faults: of the server.
        counts: figure -> value.
        accepted_at: position from 0 -> accepted drafts.
        running: requests in flight.
    """

    engine: Engine
    faults: Faults
    counts: Counter[str] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    running: int = 0

    def text(self) -> str:
        """What /metrics answers."""
        lines = self._vllm_metrics() if self.engine.name == "vllm" else self._sglang_metrics()
        return "\n".join(line for line in lines if not self._left_out(line)) + "\n"

    def _left_out(self, line: str) -> bool:
        return line.split("{")[0] in self.faults.missing

    def _vllm_metrics(self) -> Iterator[str]:
        labels = f'engine="0",model_name="{self.engine.model}"'
        yield "# HELP python_info Python platform information"
        yield "# TYPE python_info gauge"
        yield 'python_info{implementation="CPython"} 1.0'
        for name, kind in (("num_requests_running", self.running), ("num_requests_waiting", 0)):
            yield f"# TYPE vllm:{name} gauge"
            yield f"vllm:{name}{{{labels}}} {kind}"
        yield f"vllm:kv_cache_usage_perc{{{labels}}} {min(1.0, self.running / 64)}"
        counters = {
            "num_preemptions": 0,
            "prompt_tokens": self.counts["prompt_tokens"],
            "generation_tokens": self.counts["output_tokens"],
        }
        if self.engine.k:
            counters |= {
                "spec_decode_num_drafts": self.counts["drafts"],
                "spec_decode_num_draft_tokens": self.counts["draft_tokens"],
                "spec_decode_num_accepted_tokens": self.counts["accepted_tokens"],
            }
        for name, value in counters.items():
            yield f"# TYPE vllm:{name}_total counter"
            yield f"vllm:{name}_total{{{labels}}} {float(value)}"
        for reason in ("stop", "length", "abort"):
            value = self.counts["requests"] if reason == "length" else 0
            yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(value)}'
        for at in range(self.engine.k):
            yield (
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{at}"}} '
                f"{float(self.accepted_at[at])}"
            )
        requests = self.counts["requests"]
        yield from self._histogram("vllm:iteration_tokens_total", labels, "steps", "step_tokens")
        yield from self._histogram("vllm:inter_token_latency_seconds", labels, "emissions", "emission_s")
        for name in ("time_to_first_token_seconds", "request_time_per_output_token_seconds"):
            key = "ttft_s" if name.startswith("time") else "tpot_s"
            yield from self._histogram(f"vllm:{name}", labels, "requests", key)
        yield f"vllm:e2e_request_latency_seconds_count{{{labels}}} {float(requests)}"
        yield f"vllm:e2e_request_latency_seconds_sum{{{labels}}} {float(self.counts['e2e_s'])}"

    def _sglang_metrics(self) -> Iterator[str]:
        labels = f'model_name="{self.engine.model}",tp_rank="0"'
        gauges = {"num_running_reqs": self.running, "num_queue_reqs": 0, "token_usage": 0.1}
        for name, value in gauges.items():
            yield f"# TYPE sglang:{name} gauge"
            yield f"sglang:{name}{{{labels}}} {float(value)}"
        counters = {
            "prompt_tokens": self.counts["prompt_tokens"],
            "generation_tokens": self.counts["output_tokens"],
        }
        if self.engine.k:
            counters["spec_verify_calls"] = self.counts["drafts"]
        for name, value in counters.items():
            yield f"# TYPE sglang:{name}_total counter"
            yield f"sglang:{name}_total{{{labels}}} {float(value)}"
        for name, count, total in (
            ("inter_token_latency_seconds", "emissions", "emission_s"),
            ("time_to_first_token_seconds", "requests", "ttft_s"),
            ("request_time_per_output_token_seconds", "requests", "tpot_s"),
            ("e2e_request_latency_seconds", "requests", "e2e_s"),
        ):
            yield from self._histogram(f"sglang:{name}", labels, count, total)

    def _histogram(self, name: str, labels: str, count: str, total: str) -> Iterator[str]:
        counted = float(self.counts[count])
        yield f"# TYPE {name} histogram"
        yield f'{name}_bucket{{{labels},le="0.5"}} {counted}'
        yield f'{name}_bucket{{{labels},le="+Inf"}} {counted}'
        yield f"{name}_count{{{labels}}} {counted}"
        yield f"{name}_sum{{{labels}}} {float(self.counts[total])}"
