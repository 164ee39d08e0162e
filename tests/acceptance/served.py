"""Files as servers and load generators write them, made from a plain list of steps."""

from __future__ import annotations

from typing import Any


def told(accepted: list[int], drafted: list[int], k: int, **changes: Any) -> dict[str, Any]:
    """vLLM's ``metrics.speculative_decoding`` at its level "detailed"; None takes a key out."""
    histogram = [accepted.count(j) for j in range(k + 1)]
    record = {
        "mean_acceptance_length": 1 + sum(accepted) / max(len(accepted), 1),
        "acceptance_histogram": histogram,
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted),
        "num_spec_tokens": k,
        "per_step_accepted": accepted,
        "per_step_drafted": drafted,
        **changes,
    }
    return {key: value for key, value in record.items() if value is not None}


def vllm_row(
    accepted: list[int],
    drafted: list[int],
    output: int,
    k: int = 3,
    chunks: list[int] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": "cmpl-1",
        "choices": [{"index": 0}],
        "usage": {"prompt_tokens": 9, "completion_tokens": output},
        "metrics": {"speculative_decoding": told(accepted, drafted, k)},
    }
    if chunks is not None:
        row["chunks"] = chunks
    return {**row, **changes}


def sglang_row(histogram: list[int], output: int, chunks: list[int] | None = None) -> dict[str, Any]:
    meta = {
        "id": "s1",
        "prompt_tokens": 5,
        "completion_tokens": output,
        "spec_verify_ct": sum(histogram),
        "spec_correct_drafts_histogram": histogram,
    }
    return {"text": "", "meta_info": meta, **({} if chunks is None else {"chunks": chunks})}


def aiperf_row(record: dict[str, Any] | None, output: int, phase: str = "profiling") -> dict[str, Any]:
    row: dict[str, Any] = {
        "metadata": {"x_request_id": "u-1", "benchmark_phase": phase},
        "metrics": {
            "input_sequence_length": {"value": 550, "unit": "tokens"},
            "output_sequence_length": {"value": output, "unit": "tokens"},
        },
    }
    return row if record is None else {**row, "spec_decode_acceptance": {"engine": "vllm", **record}}


def bench_result(
    shares: list[float], steps: int, drafted: int, accepted: int, **changes: Any
) -> dict[str, Any]:
    """What ``vllm bench serve --save-result`` writes of a run with speculation."""
    return {
        "completed": 40,
        "spec_decode_acceptance_rate": 100 * accepted / drafted,
        "spec_decode_acceptance_length": 1 + accepted / steps,
        "spec_decode_num_drafts": steps,
        "spec_decode_draft_tokens": drafted,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": shares,
        **changes,
    }
