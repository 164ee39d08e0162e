"""A steady closed loop in the mean: requests that are all alike, so many of them at a time.

Published tables that give neither lengths nor traces are predicted this way: no draw, no queue, only the
price of the average step and what it emits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import floor

import numpy as np
from scipy.optimize import brentq

from kplan.config.scenario import Scenario, make_scenario
from kplan.errors import InputError
from kplan.latency import LatencyModel, StepShape, StepTime, engine_traits
from kplan.profiles import Drafter, EngineProfile, Model, load_hardware, load_model
from kplan.simulate import POOL, mean_lengths
from kplan.validate.predict.bench import Floats, Settings, engine_of, settings_of, sources
from kplan.validate.table import PublishedTable
from kplan.workload import load_workload


@dataclass(frozen=True)
class Crowd:
    """``batch`` requests at a time, each of ``prompt`` and ``output`` tokens.

    Attributes:
        context: mean context of a decode step, tokens.
        prefill_first: prompts run in steps of their own (SGLang) instead of riding with decodes (vLLM).
    """

    batch: int
    prompt: float
    output: float
    context: float
    prefill_first: bool = False

    def decode(self, k: int) -> StepShape:
        """A step in which all of them verify K and draft K again, without a prompt."""
        return StepShape.decode(self.batch, k, self.context)


@dataclass(frozen=True)
class Steady:
    """The average step, its share of prefills included, and the output tokens per second of all requests."""

    step: StepTime
    tokens_s: float


def steady(latency: LatencyModel, crowd: Crowd, k: int, emitted: float) -> Steady:
    """Serve ``crowd`` with K drafts a step, of which each step emits ``emitted`` tokens, bonus included.

    Every finished request is replaced by a new one, whose prompt is prefilled whole in one step; a step
    brings the whole number of prompts below or above their mean.
    """
    steps = (crowd.output - 1) / emitted + (0 if crowd.prefill_first else 1)
    arriving = crowd.batch / steps
    prompts = np.minimum(floor(arriving) + np.arange(2.0), crowd.batch)
    weight = np.array([1 + floor(arriving) - arriving, arriving - floor(arriving)])
    if crowd.prefill_first:
        decode = latency.step_seconds(_shape(crowd, np.full(1, crowd.batch), np.zeros(1), k))
        prefill = latency.step_seconds(_shape(crowd, np.zeros(2), prompts, k))
        mean = _add(_mean(decode, np.ones(1)), _mean(prefill, weight))
    else:
        mixed = latency.step_seconds(_shape(crowd, crowd.batch - prompts, prompts, k))
        mean = _mean(mixed, weight)
    return Steady(mean, crowd.batch * crowd.output / (steps * float(mean.total_s)))


def _shape(crowd: Crowd, decoding: Floats, prompts: Floats, k: int) -> StepShape:
    """``decoding`` requests verify K and ``prompts`` new ones are prefilled; all draft K again."""
    tokens = decoding * (k + 1)
    return StepShape(
        decode_requests=decoding,
        decode_tokens=tokens,
        decode_kv_tokens=decoding * crowd.context,
        decode_qk_tokens=tokens * crowd.context,
        prefill_requests=prompts,
        prefill_tokens=prompts * crowd.prompt,
        prefill_kv_tokens=prompts * crowd.prompt,
        prefill_qk_tokens=prompts * crowd.prompt**2 / 2,
        sampled_rows=tokens + prompts,
        draft_requests=decoding + prompts,
        draft_k=k,
    )


def _mean(step: StepTime, weight: Floats) -> StepTime:
    return StepTime(*(np.asarray(np.sum(part * weight)) for part in parts(step)))


def _add(one: StepTime, two: StepTime) -> StepTime:
    return StepTime(*(a + b for a, b in zip(parts(one), parts(two), strict=True)))


def parts(step: StepTime) -> tuple[Floats, Floats, Floats, Floats]:
    """(verify, draft, sampling, overhead) seconds."""
    return step.verify_s, step.draft_s, step.sampling_s, step.overhead_s


class Stand:
    """What a table's settings describe, priced under each source of GEMM times, the main one first.

    Of the scenario in the settings the load is left out: rows bring their batches.
    """

    def __init__(self, table: PublishedTable) -> None:
        """Raises InputError: a setting that is not known, or a name without a profile."""
        settings = settings_of(table, Settings)
        self.scenario = make_scenario(settings.scenario | {"concurrency": 1}, f"table {table.name}")
        self.model: Model = load_model(self.scenario.model)
        self.engine: EngineProfile = engine_of(self.scenario.engine, settings.engine_traits)
        self._hardware = load_hardware(self.scenario.hardware)
        self._calibrations = sources(self.scenario.hardware, settings)
        self._lengths = _lengths(self.scenario)

    def latencies(self, drafter: Drafter | None, k: int) -> tuple[LatencyModel, ...]:
        """One model per source; ``drafter`` None means speculation off."""
        seats = self.scenario.max_num_seqs or self.engine.limits(self._hardware, drafting=False)[1]
        traits = engine_traits(self.engine, drafter, seats, k)
        return tuple(
            LatencyModel(self._hardware, self.model, drafter, each, self.scenario.tp, traits)
            for each in self._calibrations
        )

    def crowd(self, batch: int) -> Crowd:
        """``batch`` requests of the settings' lengths."""
        prompt, output, context = self._lengths
        return Crowd(batch, prompt, output, context, prefill_first=self.engine.name == "sglang")

    def speedups(self, drafter: Drafter, crowd: Crowd, k: int) -> tuple[Callable[[float], float], ...]:
        """Per source, acceptance length -> output tokens per second over those without speculation."""
        return tuple(
            partial(_speedup, on, steady(off, crowd, 0, 1.0).tokens_s, crowd, k)
            for on, off in zip(self.latencies(drafter, k), self.latencies(None, 0), strict=True)
        )


def _speedup(on: LatencyModel, off_tokens_s: float, crowd: Crowd, k: int, emitted: float) -> float:
    return steady(on, crowd, k, emitted).tokens_s / off_tokens_s


def _lengths(scenario: Scenario) -> tuple[float, float, float]:
    """Mean prompt and output, and the context averaged over decode steps."""
    prompt, output = load_workload(scenario.workload).sample_lengths(0, POOL)
    if scenario.prompt_tokens is not None:
        prompt = np.full_like(prompt, scenario.prompt_tokens)
    if scenario.output_tokens is not None:
        output = np.full_like(output, scenario.output_tokens)
    return float(prompt.mean()), float(output.mean()), mean_lengths(prompt, output).context


def geometric_emitted(alpha: float, k: int) -> float:
    """Tokens per step, bonus included: a draft is accepted with chance ``alpha`` once those before it are."""
    return float(np.sum(alpha ** np.arange(k + 1)))


def infer_alpha(speedup: Callable[[float], float], k: int, measured: float) -> float:
    """The chance of acceptance at which K drafts give the measured speedup.

    Args:
        speedup: of the acceptance length, with which it rises.

    Raises:
        InputError: none from 0 to 1 does.
    """
    low, high = speedup(1.0), speedup(k + 1.0)
    if not low <= measured <= high:
        raise InputError(
            "measured speedup",
            measured,
            f"acceptance of 0 to 1 gives {low:.3f} to {high:.3f}",
            "check the row and the settings of its table",
        )
    return float(brentq(lambda alpha: speedup(geometric_emitted(alpha, k)) - measured, 0.0, 1.0, xtol=1e-6))
