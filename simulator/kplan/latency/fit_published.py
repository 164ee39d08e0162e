"""Host and sampler sections of a calibration from published timings: what was fitted and what is assumed."""

from __future__ import annotations

from math import hypot

from kplan.latency.fit_figures import fitted, short
from kplan.latency.fit_host import HEADS, HostFitResult
from kplan.profiles import HostFit, SamplerFit
from kplan.provenance import Figure, Kind, Provenance

ASSUMED_EXPOSED_S = 1e-4
"""Gap between steps when the GPU hides the scheduler."""

ASSUMED_LOOKUP_CONTEXT = 500
"""Tokens per request behind the n-gram bars of the published breakdown, which does not state them."""

LOOKUP_TOKEN_S = 1.13e-9
"""Measured matching time per context token (see LOOKUP_RUN)."""

TIMINGS = "vLLM issue #20780; SpecDecode-Bench (arXiv:2601.11580) Fig. 4 and predictor.py, batch 1"
BREAKDOWN = "SpecDecode-Bench (arXiv:2601.11580) Fig. 4, batch 1, 64 and 128"
LOOPS = "aiconfigurator 095f58a, silicon_sample.csv: Qwen3-32B on vLLM 0.12.0, TP 4 (Apache-2.0)"
TRAFFIC = "traffic-estimate: what a greedy sampler must move per logit; no code was read"
LOOKUP_RUN = "lookup-run: own Knuth-Morris-Pratt sketch in numba, random tokens, server CPU; not vLLM's code"
JUDGEMENT = "judgement: no public measurement found"

HALF = 0.5
"""Share of the growth per request that async scheduling is taken not to hide."""

UNKNOWN_SHARE = 12**-0.5
"""Standard error of a share of which only 0 to 1 is known."""


def host_figures(host: HostFitResult, file: str) -> dict[str, HostFit | SamplerFit]:
    """The sections ``host`` and ``sampler``; ``file`` names the published timings."""

    def found(name: str, source: str, note: str = "") -> Figure:
        return fitted(host.seconds[name], f"{file}; {source}", host.stderr[name], note)

    def half(note: str) -> Figure:
        total, error = host.seconds["request_total_s"], host.stderr["request_total_s"]
        return fitted(total * HALF, f"{file}; {BREAKDOWN}", hypot(error * HALF, total * UNKNOWN_SHARE), note)

    lookup = max(0.0, host.seconds["lookup_s"] - LOOKUP_TOKEN_S * ASSUMED_LOOKUP_CONTEXT)
    heads_note = {"eagle3": "the sources disagree: 0.65 ms in Fig. 4, 1.0 ms in #20780"}
    return {
        "sampler": SamplerFit(
            step_s=found("sampling:plain", BREAKDOWN, "batch 1"),
            verify_step_s=found("sampling:verify", BREAKDOWN, "batch 1, greedy"),
            bytes_per_logit=_assumed(10.0, TRAFFIC, "to float32 (2 read, 4 written), argmax (4 read)"),
            verify_bytes_per_logit=_assumed(
                18.0, TRAFFIC, "as above, and target and bonus rows gathered (4 read, 4 written)"
            ),
        ),
        "host": HostFit(
            step_s=found("step_s", TIMINGS),
            request_s=found("request_s", LOOPS, "scheduled synchronously, without speculation"),
            exposed_s=_assumed(
                ASSUMED_EXPOSED_S,
                JUDGEMENT,
                "gap between steps under async scheduling, 0 to 0.3 ms plausible; PR #32374 was known",
            ),
            verify_request_s=half(
                "half of the growth seen under speculation; the breakdown cannot tell what async scheduling "
                "hides of it, so any share from none to all of it is compatible"
            ),
            pass_s={head: found(f"pass_s:{head}", TIMINGS, heads_note.get(head, "")) for head in HEADS},
            layer_s=found("layer_s", TIMINGS, "draft models of 16 and 28 layers, K = 3"),
            lookup_request_s=fitted(
                lookup, f"{file}; {BREAKDOWN}", None, "what the matching of 500 tokens leaves of the bar"
            ),
            lookup_token_s=Figure(
                short(LOOKUP_TOKEN_S), Provenance(Kind.MEASURED, LOOKUP_RUN, "not on an H100 host")
            ),
        ),
    }


def _assumed(value: float, source: str, note: str) -> Figure:
    return Figure(value, Provenance(Kind.ASSUMED, source, note))
