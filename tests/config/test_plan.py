"""plan.json: files of earlier versions still load."""

from __future__ import annotations

from kplan.config.plan import Question

OLD_QUESTION = {
    "qps": 64.0, "concurrency": None, "model": "llama-3.1-8b", "hardware": "h100-sxm", "calibration": None,
    "tp": 1, "quantization": None, "kv_cache_dtype": "auto", "proposer": "eagle3", "drafter": None,
    "workload": "sharegpt", "traces": None, "traces_hash": None, "prompt_tokens": None, "output_tokens": None,
    "engine": "vllm", "async_scheduling": None, "enforce_eager": False, "gpu_memory_utilization": 0.9,
    "slo_tpot_ms": None, "slo_ttft_ms": None, "replicas": None, "max_k": 7, "max_num_seqs": 1024,
    "max_num_batched_tokens": 8192, "requests": 6572, "replications": 3, "seed": 0,
}  # fmt: skip


def test_a_question_from_before_logs_and_ramps_is_a_poisson_load_on_one_rank() -> None:
    question = Question.model_validate(OLD_QUESTION)
    assert question.replay is None
    assert (question.arrivals, question.burstiness, question.think_s) == ("poisson", 1.0, 0.0)
    assert (question.dp, question.router) == (1, "round-robin")
    assert Question.model_validate_json(question.model_dump_json()) == question
