"""Plans to test with: one like a real answer, and hypothesis strategies for any valid one.

The figures are invented for the tests and stand for nothing measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

from kplan.config.plan import (
    Answer,
    Assumption,
    BatchRange,
    KCurvePoint,
    Plan,
    PolicyResult,
    Question,
    Roofline,
    Stat,
    TimeSplit,
)
from kplan.profiles import Tree
from kplan.provenance import versions


@dataclass(frozen=True)
class FakeModel:
    hf_id: str = "meta-llama/Llama-3.1-8B-Instruct"
    mtp_layers: int = 0
    max_context: int | None = None
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"


@dataclass(frozen=True)
class FakeDrafter:
    proposer: str
    hf_id: str | None
    engine_methods: Mapping[str, str]
    tree: Tree | None = None


def drafter(proposer: str, hf_id: str | None, vllm: str, sglang: str) -> FakeDrafter:
    return FakeDrafter(proposer, hf_id, {"vllm": vllm, "sglang": sglang})


MODEL = FakeModel()
DRAFTERS = {
    "eagle3": drafter("eagle3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "eagle3", "EAGLE3"),
    "eagle": drafter("eagle", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "eagle", "EAGLE"),
    "draft-model": drafter("draft-model", "meta-llama/Llama-3.2-1B-Instruct", "draft_model", "STANDALONE"),
    "ngram": drafter("ngram", None, "ngram", "NGRAM"),
}
TABLE = (
    BatchRange(start=1, end=16, k=4),
    BatchRange(start=17, end=64, k=3),
    BatchRange(start=65, end=None, k=1),
)
TABLE_TEXT = "table:1-16=4,17-64=3,65-=1"


def question(**changes: object) -> Question:
    fields: dict[str, object] = {
        "qps": 64.0,
        "concurrency": None,
        "model": "llama-3.1-8b",
        "hardware": "h100-sxm",
        "tp": 1,
        "proposer": "eagle3",
        "workload": "sharegpt",
        "traces": None,
        "traces_hash": None,
        "prompt_tokens": None,
        "output_tokens": None,
        "gpu_memory_utilization": 0.9,
        "engine": "vllm",
        "slo_tpot_ms": 20.0,
        "slo_ttft_ms": 1000.0,
        "replicas": None,
        "max_k": 7,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "requests": 4000,
        "replications": 5,
        "seed": 0,
    }
    return Question.model_validate(fields | changes)


def stat(mean: float) -> Stat:
    return Stat(mean=mean, p50=mean * 0.97, p99=mean * 1.7, ci95=(mean - 0.21, mean + 0.21))


def result(name: str, mean_tpot_ms: float = 12.0, **changes: object) -> PolicyResult:
    k = float(name.partition(":")[2]) if name.startswith("fixed:") else 0.0 if name == "off" else 2.4
    fields: dict[str, object] = {
        "name": name,
        "exportable": name not in ("oracle", "goodput", "heuristic"),
        "why_not": {
            "oracle": "it looks at future acceptance",
            "goodput": "no engine of today prices its own steps",
            "heuristic": "no engine of today runs it",
        }.get(name, ""),
        "tpot_ms": stat(mean_tpot_ms),
        "ttft_ms": Stat(mean=61.3, p50=52.0, p99=240.0, ci95=(58.9, 63.7)),
        "output_tok_s": 13890.0,
        "output_tok_s_ci95": (13700.0, 14080.0),
        "goodput_qps": 63.1,
        "goodput_ci95": (62.0, 64.2),
        "speedup_vs_off": 18.4 / mean_tpot_ms,
        "speedup_ci95": (18.4 / mean_tpot_ms - 0.02, 18.4 / mean_tpot_ms + 0.02),
        "mean_batch": 9.3 * mean_tpot_ms,
        "mean_k": k,
        "acceptance_length": 1.0 + 0.62 * (1 - 0.6**k) / 0.4,
        "saturated": False,
        "max_qps": None,
        "split": TimeSplit(
            verify_s=0.0101 + 0.0011 * k, draft_s=0.0009 * k, sampling_s=0.0006, overhead_s=0.0021
        ),
        "mean_context": 512.0,
        "preemptions": 0,
        "k_share": {str(round(k)): 1.0},
    }
    return PolicyResult.model_validate(fields | changes)


SATURATED = {
    "saturated": True,
    "tpot_ms": None,
    "ttft_ms": None,
    "goodput_qps": 0.0,
    "goodput_ci95": None,
    "speedup_vs_off": None,
    "speedup_ci95": None,
    "max_qps": 58.0,
    "output_tok_s": 12580.0,
    "output_tok_s_ci95": (12400.0, 12760.0),
}


def make_plan(**changes: object) -> Plan:
    """A plan as `recommend` would answer 64 requests/s with EAGLE-3 on one H100."""
    shares = {"k_share": {"1": 0.31, "3": 0.57, "4": 0.12}}
    results = (
        result("off", 18.4),
        result("fixed:1", 14.1),
        result("fixed:2", 12.2),
        result("fixed:3", 11.6),
        result("fixed:4", 12.4),
        result("fixed:5", 14.9),
        result("fixed:6", 17.8),
        result("fixed:7", 21.0, **SATURATED),
        result(TABLE_TEXT, 11.2, mean_k=2.5, **shares),
        result("sglang-ema", 12.9, **shares),
        result("goodput", 11.3, **shares),
        result("oracle", 8.7, **shares),
    )
    fields: dict[str, object] = {
        "question": question(),
        "answer": Answer(
            policy=TABLE_TEXT,
            k=None,
            table=TABLE,
            replicas=1,
            saturated=False,
            words="At 64 requests/s run the batch table 4 up to 16 requests, 3 up to 64, 1 above: TPOT 11.2 "
            "ms against 18.4 ms without speculation (1.64x, 95% CI 1.62 to 1.66). One H100 is enough.",
            why=(
                "the load keeps 104 requests in a step, where verification is still bound by memory",
                "fixed:3 is 3% behind: its difference to the table is larger than the interval",
                "the oracle would reach 8.7 ms, so 22% are left to better drafts",
            ),
            max_qps=81.0,
        ),
        "policies": results,
        "k_curve": tuple(curve_point(k) for k in range(8)),
        "roofline": Roofline(
            peak_tflops=989.0, bandwidth_tb_s=3.35, efficiency_flops=0.817, efficiency_bandwidth=0.874
        ),
        "assumptions": (
            Assumption(name="GEMM bandwidth efficiency", value="0.874", kind="fitted", source="GEMM table"),
            Assumption(name="HBM bandwidth", value="3.35 TB/s", kind="published", source="H100 data sheet"),
            Assumption(name="acceptance", value="sharegpt, EAGLE-3", kind="fitted", source="recorded traces"),
            Assumption(name="network", value="0 ms", kind="assumed", source="client beside the server"),
        ),
        "scenario_hash": "0123456789abcdef",
        "versions": versions(),
    }  # fmt: skip
    return Plan.model_validate(fields | changes)


def curve_point(k: int, batch: float = 104.0) -> KCurvePoint:
    """A point of a plain roofline (989 TFLOP/s, 3.35 TB/s) for an 8B model in bf16."""
    flops, read_bytes = 2 * 8.03e9 * batch * (k + 1), 16.06e9 + batch * 512 * 131072
    step_s = max(flops / (989e12 * 0.8), read_bytes / (3.35e12 * 0.87)) + 0.001 * k + 0.002
    accepted = sum(0.62 * 0.8**i for i in range(k))
    return KCurvePoint(
        k=k,
        batch=batch,
        context=512.0,
        step_ms=step_s * 1e3,
        tokens_per_s=batch * (1 + accepted) / step_s,
        flops_per_byte=flops / read_bytes,
        tflops=flops / (step_s - 0.001 * k) / 1e12,
        bound="memory" if flops / read_bytes < 295 else "compute",
    )


def answered(
    policy: str, *, k: int | None = None, table: tuple[BatchRange, ...] | None = None, **q: object
) -> Plan:
    """A plan whose answer is ``policy``; ``q`` changes the question."""
    plan = make_plan()
    changes: dict[str, object] = {"policy": policy, "k": k, "table": table}
    return plan.model_copy(
        update={"answer": plan.answer.model_copy(update=changes), "question": question(**q)}
    )


@st.composite
def tables(draw: st.DrawFn, max_batch: int = 300, max_k: int = 7) -> tuple[BatchRange, ...]:
    """Valid tables in any order of rows; the last range may be open, and may reach past the server."""
    ends = sorted(draw(st.sets(st.integers(1, max_batch), min_size=1, max_size=6)))
    starts = [1, *(end + 1 for end in ends[:-1])]
    ranges = [
        BatchRange(start=start, end=end, k=draw(st.integers(0, max_k)))
        for start, end in zip(starts, ends, strict=True)
    ]
    if draw(st.booleans()):
        ranges[-1] = ranges[-1].model_copy(update={"end": None})
    return tuple(draw(st.permutations(ranges)))


def texts() -> st.SearchStrategy[str]:
    """Text with everything that could break out of a comment, a YAML scalar or an HTML page."""
    return st.text(max_size=40) | st.sampled_from(
        ["a\nmax-num-seqs: 1", "\x85b: 1", "</script><script>alert(1)</script>", "# x: '\"&<", "\u2028k: 2"]
    )


@st.composite
def table_plans(draw: st.DrawFn) -> Plan:
    """Valid plans that answer with a table; texts of a user are hostile."""
    table = draw(tables())
    max_num_seqs = draw(st.integers(1, 300))
    plan = answered(
        "table:" + ",".join(f"{r.start}-{r.end or ''}={r.k}" for r in sorted(table, key=lambda r: r.start)),
        table=table,
        max_num_seqs=max_num_seqs,
        tp=draw(st.sampled_from([1, 2, 4, 8])),
        workload=draw(texts()),
        hardware=draw(texts()),
    )
    words = plan.answer.model_copy(update={"words": draw(texts()), "replicas": draw(st.integers(1, 4))})
    return plan.model_copy(update={"answer": words, "scenario_hash": draw(texts())})
