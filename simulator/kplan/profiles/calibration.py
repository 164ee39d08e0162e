"""Fitted coefficients of the latency model for one GPU. Times in seconds, efficiencies as shares of peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kplan.profiles.figures import scaled
from kplan.provenance import Figure, Provenance


@dataclass(frozen=True)
class GemmFit:
    """t = t0 + ((bytes / (BW bandwidth_eff))^p + (flops / (peak flops_eff))^p)^(1/p).

    Where the inputs are converted to the weights' format by a kernel of its own (fp8), bytes / (BW
    convert_eff) of that pass come on top; None where they need no conversion.
    """

    t0_s: Figure
    bandwidth_eff: Figure
    flops_eff: Figure
    p: Figure
    convert_eff: Figure | None = None


@dataclass(frozen=True)
class AttentionFit:
    """One layer's attention.

    Decode and verify: t0 + ((tile_s x requests x KV heads)^p + (bytes / (BW bandwidth_eff))^p
    + (flops / (peak flops_eff))^p)^(1/p). Prefill adds bytes / (BW prefill_bandwidth_eff)
    + flops / (peak flops_eff): one launch serves both, so t0 is paid once.
    """

    t0_s: Figure
    tile_s: Figure
    bandwidth_eff: Figure
    p: Figure
    prefill_bandwidth_eff: Figure
    flops_eff: Figure


@dataclass(frozen=True)
class ElementwiseFit:
    """Norms, rotary, activation and residual of one layer: t0 + bytes / (BW bandwidth_eff)."""

    t0_s: Figure
    bandwidth_eff: Figure


@dataclass(frozen=True)
class AllReduceFit:
    """One all-reduce: t0 + min(bytes / one_shot_bytes_per_s, two_shot_s + bytes / bytes_per_s).

    Small messages go in one shot (every rank reads all of every other's), large ones in two (reduce-scatter,
    then gather): one more exchange, less traffic.
    """

    t0_s: Figure
    one_shot_bytes_per_s: Figure
    two_shot_s: Figure
    bytes_per_s: Figure


@dataclass(frozen=True)
class SamplerFit:
    """After the LM head: a fixed part and device-memory traffic per logit.

    Attributes:
        step_s: launches of the plain sampler.
        verify_step_s: launches of the rejection sampler, paid instead when drafts are verified.
        bytes_per_logit: traffic of the plain sampler.
        verify_bytes_per_logit: traffic of the rejection sampler.
    """

    step_s: Figure
    verify_step_s: Figure
    bytes_per_logit: Figure
    verify_bytes_per_logit: Figure


@dataclass(frozen=True)
class HostFit:
    """CPU work around a step.

    Attributes:
        step_s, request_s: scheduling and output handling, per step and per request; async scheduling hides
            them behind the GPU.
        exposed_s: what remains visible per step under async scheduling.
        verify_request_s: per request whose drafts of a model drafter are verified; on the critical path.
        pass_s: proposer -> host time of one autoregressive pass of a head; a pass takes the longer of this
            and its GPU work. Of ``draft-model``: the part that does not grow with its layers.
        layer_s: eager launch of one transformer layer; floors a draft model's pass and an eager target step.
        lookup_request_s, lookup_token_s: context matching per request and per context token.
        draft_step_s: per step of a server that drafts with passes, whatever K is (0 included): preparing the
            drafter's inputs and handing the drafts to the scheduler. None where it is within the others: the
            time of a pass, and what async scheduling hides.
    """

    step_s: Figure
    request_s: Figure
    exposed_s: Figure
    verify_request_s: Figure
    pass_s: Mapping[str, Figure]
    layer_s: Figure
    lookup_request_s: Figure
    lookup_token_s: Figure
    draft_step_s: Figure | None = None


@dataclass(frozen=True)
class Calibration:
    """All coefficients of one GPU, each with its source.

    Attributes:
        hardware: profile name of the GPU.
        summary: one line for listings.
        gemm: the GEMM model predictions use.
        gemm_alternate: a second source of GEMM times; the distance between both is the band.
        host_alternate: host times fitted beside that source, for what one leaves to the host the other does
            not; None when they do not depend on it.
        gemm_fp8: with fp8 weights and activations; None when nothing of the kind was measured.
        attention_fp8: with an fp8 KV cache; None when nothing of the kind was measured.
        all_reduce: ranks -> fit.
        borrowed_from: the GPU whose calibration stands in for that of ``hardware``; "" for its own.
    """

    hardware: str
    summary: str
    gemm: GemmFit
    gemm_alternate: GemmFit | None
    attention: AttentionFit
    elementwise: ElementwiseFit
    all_reduce: Mapping[int, AllReduceFit]
    sampler: SamplerFit
    host: HostFit
    provenance: Provenance
    gemm_fp8: GemmFit | None = None
    attention_fp8: AttentionFit | None = None
    host_alternate: HostFit | None = None
    borrowed_from: str = ""

    def alternate(self) -> Calibration | None:
        """The same on its second source of GEMM times; None when there is one source."""
        if self.gemm_alternate is None:
            return None
        host = self.host_alternate or self.host
        return replace(self, gemm=self.gemm_alternate, host=host, gemm_alternate=None, host_alternate=None)

    def slower(self, factor: float) -> Calibration:
        """A calibration in which every time is ``factor`` times longer (efficiencies fall accordingly)."""
        times, rates = factor, 1 / factor

        def gemm(fit: GemmFit) -> GemmFit:
            return replace(
                fit,
                t0_s=scaled(fit.t0_s, times),
                bandwidth_eff=scaled(fit.bandwidth_eff, rates),
                flops_eff=scaled(fit.flops_eff, rates),
                convert_eff=None if fit.convert_eff is None else scaled(fit.convert_eff, rates),
            )

        def attention(fit: AttentionFit) -> AttentionFit:
            return AttentionFit(
                t0_s=scaled(fit.t0_s, times),
                tile_s=scaled(fit.tile_s, times),
                bandwidth_eff=scaled(fit.bandwidth_eff, rates),
                p=fit.p,
                prefill_bandwidth_eff=scaled(fit.prefill_bandwidth_eff, rates),
                flops_eff=scaled(fit.flops_eff, rates),
            )

        def host(fit: HostFit) -> HostFit:
            return HostFit(
                step_s=scaled(fit.step_s, times),
                request_s=scaled(fit.request_s, times),
                exposed_s=scaled(fit.exposed_s, times),
                verify_request_s=scaled(fit.verify_request_s, times),
                pass_s={name: scaled(figure, times) for name, figure in fit.pass_s.items()},
                layer_s=scaled(fit.layer_s, times),
                lookup_request_s=scaled(fit.lookup_request_s, times),
                lookup_token_s=scaled(fit.lookup_token_s, times),
                draft_step_s=None if fit.draft_step_s is None else scaled(fit.draft_step_s, times),
            )

        sampler = self.sampler
        return Calibration(
            hardware=self.hardware,
            summary=self.summary,
            gemm=gemm(self.gemm),
            gemm_alternate=None if self.gemm_alternate is None else gemm(self.gemm_alternate),
            gemm_fp8=None if self.gemm_fp8 is None else gemm(self.gemm_fp8),
            attention=attention(self.attention),
            attention_fp8=None if self.attention_fp8 is None else attention(self.attention_fp8),
            elementwise=ElementwiseFit(
                scaled(self.elementwise.t0_s, times), scaled(self.elementwise.bandwidth_eff, rates)
            ),
            all_reduce={
                n: AllReduceFit(
                    t0_s=scaled(fit.t0_s, times),
                    one_shot_bytes_per_s=scaled(fit.one_shot_bytes_per_s, rates),
                    two_shot_s=scaled(fit.two_shot_s, times),
                    bytes_per_s=scaled(fit.bytes_per_s, rates),
                )
                for n, fit in self.all_reduce.items()
            },
            sampler=SamplerFit(
                step_s=scaled(sampler.step_s, times),
                verify_step_s=scaled(sampler.verify_step_s, times),
                bytes_per_logit=sampler.bytes_per_logit,
                verify_bytes_per_logit=sampler.verify_bytes_per_logit,
            ),
            host=host(self.host),
            host_alternate=None if self.host_alternate is None else host(self.host_alternate),
            provenance=self.provenance,
            borrowed_from=self.borrowed_from,
        )
