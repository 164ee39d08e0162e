"""The latency model: a roofline of the step on one replica, with its ceilings and its memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from kplan.errors import InputError
from kplan.latency.compiled import StepCost, price
from kplan.latency.memory import kv_capacity_tokens
from kplan.latency.shape import StepShape
from kplan.latency.tables import Setup, step_cost
from kplan.latency.traits import EngineTraits
from kplan.profiles import Calibration, Drafter, GemmFit, Hardware, Model

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
class Work:
    """What the target pass does on one rank: floating-point operations and device-memory bytes."""

    flops: Array
    bytes: Array

    @property
    def flops_per_byte(self) -> Array:
        return self.flops / self.bytes


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
        traits: how the engine launches; the default is eager with async scheduling.
        gemm: a GEMM fit to use instead of the calibration's own (see :meth:`band`).

    Raises:
        InputError: a calibration of another GPU, or ranks that do not divide the model.
    """

    def __init__(
        self,
        hardware: Hardware,
        model: Model,
        drafter: Drafter | None,
        calibration: Calibration,
        tp: int = 1,
        traits: EngineTraits | None = None,
        gemm: GemmFit | None = None,
    ) -> None:
        if calibration.hardware != hardware.name:
            raise InputError(
                "calibration",
                calibration.hardware,
                f"must be of {hardware.name}",
                "fit one with `kplan calibrate`",
            )
        model.decoder.check_tp(tp)
        if tp > 1 and tp not in calibration.all_reduce:
            known = ", ".join(map(str, [1, *sorted(calibration.all_reduce)]))
            raise InputError(
                "tensor parallel size", tp, f"the calibration covers {known}", "use one of these"
            )
        self.hardware, self.model, self.drafter = hardware, model, drafter
        self.calibration, self.tp = calibration, tp
        self.traits = traits or EngineTraits()
        self._gemm = gemm or calibration.gemm

    def compile(self, max_tokens: int, max_seqs: int, max_k: int) -> StepCost:
        """Tables for steps of up to these sizes; larger steps are priced along the last slope."""
        setup = Setup(
            self.hardware, self.model, self.drafter, self.calibration, self._gemm, self.tp, self.traits
        )
        return step_cost(setup, max_tokens, max_seqs, max_k)

    def step_seconds(self, shape: StepShape) -> StepTime:
        """Price a whole broadcast grid of steps in one call. Counts are truncated to integers."""
        given = [np.asarray(getattr(shape, field.name), dtype=np.float64) for field in fields(shape)]
        grid = np.broadcast_shapes(*(column.shape for column in given))
        # Numba wants at least one axis, and one type for all columns: read-only broadcast views.
        columns = tuple(np.broadcast_to(column, grid or (1,)) for column in given)
        most = [float(np.max(column, initial=0.0)) for column in given]
        most_requests = int(max(most[0] + most[4], most[9], 1))
        cost = self.compile(int(most[1] + most[5]), most_requests, int(most[8]) // most_requests + 1)
        out = np.empty((4, columns[0].size))
        price(cost, columns, out)
        verify, draft, sampling, overhead = (part.reshape(grid) for part in out)
        return StepTime(verify, draft, sampling, overhead)

    def work(self, shape: StepShape) -> Work:
        """FLOPs and bytes of the target pass on one rank: weights once, KV once per request, pairs per
        query."""
        model, decoder, tp = self.model, self.model.decoder, self.tp
        layer_weights = sum(n * matmul.params for n, matmul in decoder.matmuls(tp))
        head_weights = decoder.head_matmul(tp).params
        tokens = np.add(shape.decode_tokens, shape.prefill_tokens)
        pairs = np.add(shape.decode_qk_tokens, shape.prefill_qk_tokens)
        kv_tokens = np.add(shape.decode_kv_tokens, shape.prefill_kv_tokens)
        pair_flops = 4.0 * decoder.layers * (decoder.heads // tp) * decoder.head_dim
        flops = 2.0 * (layer_weights * tokens + head_weights * np.asarray(shape.sampled_rows))
        weights = (layer_weights + head_weights) * model.weight_dtype.bytes
        return Work(
            flops=np.asarray(flops + pair_flops * pairs, dtype=np.float64),
            bytes=np.asarray(weights + model.kv_bytes_per_token(tp) * kv_tokens, dtype=np.float64),
        )

    def ceilings(self) -> Ceilings:
        """Peaks of one GPU and the shares of them that its GEMMs reach."""
        return Ceilings(
            peak_flops=self.hardware.peak_flops.value,
            bandwidth_bytes_s=self.hardware.bandwidth_bytes_s.value,
            flops_eff=self._gemm.flops_eff.value,
            bandwidth_eff=self._gemm.bandwidth_eff.value,
        )

    def kv_capacity_tokens(
        self, gpu_memory_utilization: float = 0.9, max_num_batched_tokens: int = 8192
    ) -> int:
        """Tokens of KV cache that fit; InfeasibleError, naming a TP that would do, when weights do not."""
        if not 0.0 < gpu_memory_utilization <= 1.0:
            raise InputError("gpu_memory_utilization", gpu_memory_utilization, "must be in (0, 1]")
        return kv_capacity_tokens(
            self.hardware, self.model, self.drafter, self.tp, gpu_memory_utilization, max_num_batched_tokens
        )

    def alternate(self) -> LatencyModel | None:
        """The same model on the second source of GEMM times; None when the calibration has one source."""
        gemm = self.calibration.gemm_alternate
        if gemm is None:
            return None
        return LatencyModel(
            self.hardware, self.model, self.drafter, self.calibration, self.tp, self.traits, gemm
        )

    def band(self, shape: StepShape) -> tuple[Array, Array]:
        """(low, high) seconds of the step over both GEMM sources; equal when there is one."""
        own = self.step_seconds(shape).total_s
        second = self.alternate()
        other = own if second is None else second.step_seconds(shape).total_s
        return np.minimum(own, other), np.maximum(own, other)
