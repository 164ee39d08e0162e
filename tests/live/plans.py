"""Plans for the exporter, with model folders of this machine in place of model names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kplan.config.plan import Answer, BatchRange, Plan, Question, Roofline
from kplan.profiles import Drafter, Model, load_drafter, load_model
from kplan.provenance import versions

MODEL = "llama-3.1-8b"


def target(folder: Path) -> Model:
    """A shipped model profile whose weights are in ``folder``."""
    return replace(load_model(MODEL), hf_id=str(folder))


def drafter(proposer: str, folder: Path) -> Drafter:
    """The shipped drafter profile of ``proposer``; its weights, when it has any, are in ``folder``."""
    profile = load_drafter(proposer, load_model(MODEL))
    return profile if profile.hf_id is None else replace(profile, hf_id=str(folder))


def plan(
    *,
    ranges: tuple[tuple[int, int | None, int], ...] = (),
    k: int | None = None,
    proposer: str = "draft-model",
    engine: str = "vllm",
    max_num_seqs: int = 32,
    tp: int = 1,
    async_scheduling: bool | None = None,
    enforce_eager: bool = False,
    dp: int = 1,
    max_model_len: int | None = None,
    prefix_caching: bool = True,
    kv_tokens: int | None = None,
) -> Plan:
    """A plan that recommends a batch table (``ranges`` of start, end, K) or one ``k``."""
    table = tuple(BatchRange(start=start, end=end, k=drafts) for start, end, drafts in ranges) or None
    shown = ",".join(f"{a}-{'' if b is None else b}={c}" for a, b, c in ranges)
    policy = f"table:{shown}" if table else "off" if k == 0 else f"fixed:{k}"
    top_k = max((r.k for r in table), default=0) if table else (k or 0)
    return Plan(
        question=Question(
            qps=2.0,
            concurrency=None,
            model=MODEL,
            hardware="cpu",
            tp=tp,
            dp=dp,
            proposer=proposer,
            workload="cycle",
            traces=None,
            traces_hash=None,
            prompt_tokens=None,
            output_tokens=None,
            gpu_memory_utilization=0.9,
            engine=engine,
            async_scheduling=async_scheduling,
            enforce_eager=enforce_eager,
            slo_tpot_ms=None,
            slo_ttft_ms=None,
            replicas=1,
            max_k=max(top_k, 1),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=2048,
            max_model_len=max_model_len,
            prefix_caching=prefix_caching,
            requests=1,
            replications=1,
            seed=0,
        ),
        answer=Answer(
            policy=policy,
            k=k,
            table=table,
            replicas=1,
            saturated=False,
            feasible=True,
            words="",
            why=(),
            max_qps=None,
            kv_tokens=kv_tokens,
        ),
        policies=(),
        k_curve=(),
        roofline=Roofline(
            peak_tflops=1.0, bandwidth_tb_s=1.0, efficiency_flops=1.0, efficiency_bandwidth=1.0
        ),
        assumptions=(),
        scenario_hash="0" * 16,
        versions=versions(),
    )
