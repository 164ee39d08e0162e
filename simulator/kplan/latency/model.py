"""The latency model: a roofline of the step on one replica, with its ceilings and its memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.errors import InputError
from kplan.latency import ops
from kplan.latency.compiled import StepCost
from kplan.latency.drafting import step_cost
from kplan.latency.grid import columns, price_grid
from kplan.latency.memory import kv_capacity_tokens
from kplan.latency.shape import StepShape
from kplan.latency.tables import Setup
from kplan.latency.traits import EngineTraits, launched_on
from kplan.latency.work import Work, target_work
from kplan.profiles import Calibration, Drafter, Hardware, Model

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by what they are spent on; arrays of the shape's broadcast form."""

    verify_s: Array
    draft_s: Array
    sampling_s: Array
    overhead_s: Array

    @property
    def total_s(self) -> Array:
        return self.verify_s + self.draft_s + self.sampling_s + self.overhead_s


@dataclass(frozen=True)
class Ceilings:
    """What one GPU reaches at most: datasheet peaks and the fitted shares of them."""

    peak_flops: float
    bandwidth_bytes_s: float
    flops_eff: float
    bandwidth_eff: float

    @property
    def ridge_flops_per_byte(self) -> float:
        """Intensity above which a pass is compute bound."""
        return self.peak_flops * self.flops_eff / (self.bandwidth_bytes_s * self.bandwidth_eff)


class LatencyModel:
    """Prices engine steps of one replica.

    Args:
        hardware, model, calibration: profiles; the calibration must be of the same GPU.
        drafter: None means speculation is off, with none of its overheads.
        tp: tensor-parallel ranks; 1, or a number the calibration has an all-reduce for.
        traits: how the engine launches; the default is eager with async scheduling. A CPU captures no graphs
            and has no host to overlap with, whatever they say.

    Raises:
        InputError: a calibration of another GPU, or ranks that do not divide the model or the drafter.
    """

    def __init__(
        self,
        hardware: Hardware,
        model: Model,
        drafter: Drafter | None,
        calibration: Calibration,
        tp: int = 1,
        traits: EngineTraits | None = None,
    ) -> None:
        if calibration.hardware != hardware.name:
            raise InputError(
                "calibration",
                calibration.hardware,
                f"must be of {hardware.name}",
                "fit one with `kplan calibrate`",
            )
        model.decoder.check_tp(tp)
        if drafter is not None and drafter.decoder is not None:
            drafter.decoder.check_tp(tp)
        if tp > 1 and tp not in calibration.all_reduce:
            known = ", ".join(map(str, [1, *sorted(calibration.all_reduce)]))
            raise InputError(
                "tensor parallel size", tp, f"the calibration covers {known}", "use one of these"
            )
        self.hardware, self.model, self.drafter = hardware, model, drafter
        self.calibration, self.tp = calibration, tp
        self.traits = launched_on(hardware, traits or EngineTraits())
        self._priced: tuple[tuple[int, int, int], StepCost] | None = None  # tables of the last grid

    def compile(self, max_tokens: int, max_seqs: int, max_k: int) -> StepCost:
        """Tables for steps of up to ``max_tokens``, ``max_seqs`` requests and K = ``max_k``.

        Larger steps are priced along the last slope.
        """
        setup = Setup(self.hardware, self.model, self.drafter, self.calibration, self.tp, self.traits)
        return step_cost(setup, max_tokens, max_seqs, max_k)

    def step_seconds(self, shape: StepShape) -> StepTime:
        """Price a whole broadcast grid of steps in one call. Counts are truncated to integers."""
        whole, pairs = columns(shape)
        most = [int(np.max(column, initial=0)) for column in whole]
        most_requests = max(most[0] + most[4], most[8], 1)
        sizes = most[1] + most[5], most_requests, most[7] // most_requests + 1
        if self._priced is None or self._priced[0] != sizes:
            self._priced = sizes, self.compile(*sizes)
        verify, draft, sampling, overhead = price_grid(self._priced[1], whole, pairs)
        return StepTime(verify, draft, sampling, overhead)

    def work(self, shape: StepShape) -> Work:
        """FLOPs and bytes of the target pass on one rank."""
        return target_work(self.model, self.tp, shape)

    def ceilings(self) -> Ceilings:
        """Peaks of one GPU in the layers' number format, and the shares of them that its GEMMs reach."""
        dtype, hardware = self.model.weight_dtype, self.hardware
        fit = ops.gemm_fit(self.calibration, hardware, dtype)
        return Ceilings(
            peak_flops=hardware.peak(dtype).value,
            bandwidth_bytes_s=hardware.bandwidth_bytes_s.value,
            flops_eff=fit.flops_eff.value,
            bandwidth_eff=fit.bandwidth_eff.value,
        )

    def kv_capacity_tokens(
        self, gpu_memory_utilization: float = 0.9, max_num_batched_tokens: int = 8192
    ) -> int:
        """Tokens of KV cache that fit in ``gpu_memory_utilization`` (0..1) of the memory.

        A step of ``max_num_batched_tokens`` has its room beside them. Raises InfeasibleError, naming a TP
        that would do, when the weights do not fit.
        """
        if not 0.0 < gpu_memory_utilization <= 1.0:
            raise InputError("gpu_memory_utilization", gpu_memory_utilization, "must be in (0, 1]")
        return kv_capacity_tokens(
            self.hardware, self.model, self.drafter, self.tp, gpu_memory_utilization, max_num_batched_tokens
        )

    def on(self, calibration: Calibration) -> LatencyModel:
        """The same replica on another calibration."""
        return LatencyModel(self.hardware, self.model, self.drafter, calibration, self.tp, self.traits)

    def alternate(self) -> LatencyModel | None:
        """The same model on the second source of GEMM times, with the host times fitted beside it.

        None when the calibration has one source.

        The second source is of bf16: products that an fp8 fit prices are the same in both models, so the band
        of an fp8 model is that of its bf16 products alone.
        """
        other = self.calibration.alternate()
        return None if other is None else self.on(other)

    def band(self, shape: StepShape) -> tuple[Array, Array]:
        """(low, high) seconds of the step over both GEMM sources; equal when there is one."""
        own = self.step_seconds(shape).total_s
        second = self.alternate()
        other = own if second is None else second.step_seconds(shape).total_s
        return np.minimum(own, other), np.maximum(own, other)
