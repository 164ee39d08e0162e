"""vLLM stat-logger plugin: one JSON line per engine step, appended to the file that KPLAN_STEPLOG names.

Stands alone: ``kplan steplog install`` copies this file into an engine's site-packages, and it runs in the
engine's API server. Without KPLAN_STEPLOG it does nothing. It never breaks the engine: what goes wrong ends
the log with one warning. The file is bounded: at KPLAN_STEPLOG_MIB (256 when unset) it stops with a note.

The first line, ``{"log": {...}}``, says what the server is; then per step

    t             time.time() when its outputs were read
    e             engine (data-parallel rank)
    run, wait     requests running and waiting after it
    kv            used share of the KV cache after it
    idx, ctx_r, ctx_t, gen_r, gen_t, ms      vLLM's iteration details: index, requests and tokens of prompt
                  chunks and of decodes, and the milliseconds that the engine waited for its workers: forward,
                  sampling and drafting, without scheduling. Need --enable-logging-iteration-details.
    gap_ms        milliseconds since the step before, by the engine's clock: the median inter-token latency of
                  the step's requests, of which each has one. null when none decoded.
    held          prompt and output tokens of all requests before the step (their contexts), counted since the
                  engine was last idle; prompts enter when they are computed to the end
    new           tokens emitted
    drafts, drafted, acc      requests that verified drafts, drafts verified, and accepted
"""

import json
import logging
import os
import time
from statistics import median
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

MOST_MIB = 256.0
"""Size at which a log stops when KPLAN_STEPLOG_MIB does not say."""

SCHEMA_VERSION = 1
"""Of the log; kplan.formats, which cannot be imported here, has it too."""

_logger = logging.getLogger("vllm.kplan_steplog")


class StepLog(StatLoggerBase):  # type: ignore[misc]
    """Writes the log; made by vLLM once per engine."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._config, self._engine = vllm_config, engine_index
        self._file: int | None = None
        self._left = 0.0
        self._held = 0
        path = os.environ.get("KPLAN_STEPLOG")
        if not path:
            return
        try:
            self._left = float(os.environ.get("KPLAN_STEPLOG_MIB", MOST_MIB)) * 2**20
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            self._left -= os.fstat(self._file).st_size
        except Exception as error:  # noqa: BLE001
            self._end(error)

    def log_engine_initialized(self) -> None:
        """Say what the server is; called once it is up."""
        self._guarded(lambda: {"log": self._about()})

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,  # noqa: ARG002
        engine_idx: int = 0,
    ) -> None:
        """Write the line of one step."""
        self._guarded(lambda: self._line(scheduler_stats, iteration_stats, engine_idx))

    def _guarded(self, make: Any) -> None:
        if self._file is None:
            return
        try:
            line = (json.dumps(make(), separators=(",", ":")) + "\n").encode()
            self._left -= len(line)
            if self._left >= 0:
                os.write(self._file, line)
            else:
                os.write(self._file, b'{"stopped":"size limit"}\n')
                self._end("its size limit, KPLAN_STEPLOG_MIB, is reached")
        except Exception as error:  # noqa: BLE001
            self._end(error)

    def _end(self, error: Exception | str) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        _logger.warning("kplan step log ends: %s", error)

    def _about(self) -> dict[str, Any]:
        cache, drafts = self._config.cache_config, self._config.speculative_config
        about: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        about |= {"model": self._config.model_config.model, "engine_index": self._engine}
        about["proposer"] = None if drafts is None else str(drafts.method).replace("_", "-")
        if cache.num_gpu_blocks and cache.block_size:
            about["kv_capacity_tokens"] = cache.num_gpu_blocks * cache.block_size
        return about

    def _line(self, scheduler: Any, iteration: Any, engine: int) -> dict[str, Any]:
        line: dict[str, Any] = {"t": round(time.time(), 6), "e": engine}
        if scheduler is not None:
            line |= {
                "run": scheduler.num_running_reqs,
                "wait": scheduler.num_waiting_reqs,
                "kv": scheduler.kv_cache_usage,
            }
            if (step := scheduler.iteration_details) is not None and not step.is_dummy:
                line |= {
                    "idx": step.iteration_index,
                    "ctx_r": step.num_ctx_requests,
                    "ctx_t": step.num_ctx_tokens,
                    "gen_r": step.num_generation_requests,
                    "gen_t": step.num_generation_tokens,
                    "ms": round(step.elapsed_ms, 4),
                }
            if (drafts := scheduler.spec_decoding_stats) is not None:
                line |= {
                    "drafts": drafts.num_drafts,
                    "drafted": drafts.num_draft_tokens,
                    "acc": drafts.num_accepted_tokens,
                }
        if iteration is not None:
            gaps = iteration.inter_token_latencies_iter
            line |= {
                "gap_ms": round(median(gaps) * 1e3, 4) if gaps else None,
                "held": self._held,
                "new": iteration.num_generation_tokens,
            }
            self._held += iteration.num_prompt_tokens + iteration.num_generation_tokens
            for done in iteration.finished_requests:
                self._held -= done.num_prompt_tokens + done.num_generation_tokens
        if scheduler is not None and not scheduler.num_running_reqs and not scheduler.num_waiting_reqs:
            self._held = 0
        return line
