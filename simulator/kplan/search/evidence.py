"""What the answer rests on: the K curve under the roofline, and every assumption with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import numpy as np

from kplan import metrics
from kplan.config.plan import Assumption, KCurvePoint, Roofline
from kplan.latency import StepShape
from kplan.profiles import Dtype
from kplan.provenance import Figure
from kplan.search.candidates import WalkCurve
from kplan.search.evaluate import Evaluated
from kplan.simulate import Setup


def k_curve(setup: Setup, curve: WalkCurve, chosen: Evaluated) -> tuple[KCurvePoint, ...]:
    """A steady decode step at the load's own mean batch for every K that is run (drafter configured).

    Args:
        curve: tokens and verified drafts per request and step at each K.
        chosen: the recommended policy, whose mean batch is used.
    """
    context = setup.lengths.context
    batch = max(1, round(metrics.mean_batch(chosen.runs)))
    shape = StepShape.decode(batch, np.arange(len(curve.tokens)), context, curve.verified)
    time, work = setup.latency.step_seconds(shape), setup.latency.work(shape)
    flops, moved = np.broadcast_arrays(work.flops, work.bytes)  # the bytes moved are the same at every K
    ceilings = setup.latency.ceilings()
    memory_s = moved / (ceilings.bandwidth_bytes_s * ceilings.bandwidth_eff)
    compute_s = flops / (ceilings.peak_flops * ceilings.flops_eff)
    return tuple(
        KCurvePoint(
            k=k,
            batch=float(batch),
            context=context,
            step_ms=float(time.total_s[k]) * 1e3,
            tokens_per_s=float(batch * curve.tokens[k] / time.total_s[k]),
            flops_per_byte=float(flops[k] / moved[k]),
            tflops=float(flops[k] / time.verify_s[k]) / 1e12,
            bound="memory" if memory_s[k] >= compute_s[k] else "compute",
        )
        for k in np.flatnonzero(curve.tokens).tolist()
    )


def roofline(setup: Setup) -> Roofline:
    """The ceilings of one GPU; with tensor parallelism every point of the curve is one rank's share."""
    ceilings = setup.latency.ceilings()
    return Roofline(
        peak_tflops=ceilings.peak_flops / 1e12,
        bandwidth_tb_s=ceilings.bandwidth_bytes_s / 1e12,
        efficiency_flops=ceilings.flops_eff,
        efficiency_bandwidth=ceilings.bandwidth_eff,
    )


def assumptions(setup: Setup) -> tuple[Assumption, ...]:
    """Every profile and model the answer rests on, with how it is known."""
    rows = [
        Assumption(
            name=f"hardware {setup.hardware.name}",
            value="datasheet peaks",
            kind=setup.hardware.provenance.kind,
            source=setup.hardware.provenance.source,
        ),
        Assumption(
            name=f"model {setup.model.name}",
            value=f"{setup.model.weight_bytes() / 1e9:.1f} GB of weights in {setup.model.weight_dtype}, "
            f"KV cache in {setup.model.kv_dtype}",
            kind=setup.model.provenance.kind,
            source="; ".join(filter(None, [setup.model.provenance.source, setup.model.provenance.note])),
        ),
        *(
            Assumption(
                name=f"drafter {drafter.name}",
                value=drafter.kind,
                kind=drafter.provenance.kind,
                source=drafter.provenance.source,
            )
            for drafter in (setup.mix.drafters if setup.mix else (setup.drafter,))
        ),
    ]
    if setup.mix is not None:
        rows.append(
            Assumption(
                name="change of a request's proposer",
                value=f"{setup.scenario.switch_us:g} us",
                kind="assumed",
                source="--switch-us; all proposers are kept current, so 0 unless given",
            )
        )
    rows += [
        Assumption(name=f"step time: {name}", value=_with_unit(name, figure.value),
                   kind=figure.provenance.kind, source=figure.provenance.source)
        for name, figure in _figures(setup.latency.calibration)
    ]  # fmt: skip
    if setup.recorded is not None:
        source = setup.recorded.provenance
        rows.append(
            Assumption(
                name="acceptance and lengths",
                value=f"{len(setup.recorded)} recorded requests",
                kind=source.kind,
                source="; ".join([source.source, *setup.recorded.notes]),
            )
        )
    if setup.log is not None:
        source = setup.log.provenance
        rows.append(
            Assumption(
                name="arrivals and lengths",
                value=f"{len(setup.log)} logged requests",
                kind=source.kind,
                source="; ".join(filter(None, [source.source, source.note])),
            )
        )
    if setup.workload is not None:
        rows += [
            Assumption(name=name, value=setup.workload.name, kind=source.kind,
                       source="; ".join(filter(None, [source.source, source.note])))
            for name, source in setup.workload.sources(setup.scenario.proposer).items()
            if name != "lengths" or setup.log is None
        ]  # fmt: skip
        if target := _lender(setup):
            rows.append(
                Assumption(
                    name=f"acceptance on {setup.model.name}",
                    value=f"that of {target}",
                    kind="assumed",
                    source="no acceptance of this model is recorded",
                )
            )
    return tuple(rows)


def _lender(setup: Setup) -> str:
    """The other model whose acceptance stands for this one's, "" when it is the model's own or recorded."""
    target = setup.workload.target if setup.workload is not None else ""
    return "" if target == setup.model.name else target


def caveats(setup: Setup, recorded_k: int) -> list[str]:
    """What a reader must know of the load, the acceptance and the step times behind it, a sentence each.

    Args:
        recorded_k: K of the recording or the figures behind the acceptance; above it nothing was seen.
    """
    found = []
    if target := _lender(setup):
        found.append(
            f"The acceptance of {setup.scenario.proposer} is {target}'s, assumed to hold for "
            f"{setup.model.name}: record your own traces (--traces) before relying on it."
        )
    if setup.workload is not None and setup.scenario.proposer in setup.workload.trees:
        found.append(
            f"The acceptance of {setup.scenario.proposer} is derived from the chain of {setup.drafter.head}: "
            "how often its other branches are right is assumed. Record your own traces (--traces) before "
            "relying on it."
        )
    if setup.scenario.max_k > recorded_k and setup.drafter.tree is None:
        found.append(
            f"The acceptance is known up to K = {recorded_k}: what is said of larger K is a lower bound."
        )
    return found + list(_load_told(setup)) + list(_unmeasured(setup))


def _load_told(setup: Setup) -> Iterator[str]:
    """What the server or kplan made of the load."""
    source = setup.source
    told = []
    if source.refused:
        left = "" if setup.rate is None else f", which leaves {setup.rate:.3g} QPS"
        told.append(f"{source.refused:.1%} of the requests have no room for an answer and are refused{left}")
    if source.cut:
        told.append(f"{source.cut:.1%} of the requests end early")
    if told:
        whose = "the model's context" if setup.scenario.max_model_len is None else "--max-model-len"
        yield f"The server takes {source.max_len:,} tokens a request ({whose}): {'; '.join(told)}."
    if source.log is not None:
        yield from (f"Of the log, {note}." for note in source.log.notes)
        yield (
            f"The log does not say what is accepted: the acceptance of {setup.scenario.workload} is assumed. "
            "Every replication replays the same arrivals and lengths, so intervals are of acceptance alone."
        )
        if source.log.prefix is not None:
            yield "The prefix cache keeps what prompts share: --no-prefix-caching to compare."


def _unmeasured(setup: Setup) -> Iterator[str]:
    """Parts of the step time that rest on no measurement of this GPU, format or layout."""
    hardware, model, calibration = setup.hardware, setup.model, setup.latency.calibration
    if calibration.borrowed_from:
        yield (
            f"{hardware.name} is not calibrated: its datasheet peaks times the shares that "
            f"{calibration.borrowed_from} reaches; fit its own with `kplan calibrate` and give it by "
            "--calibration."
        )
    if model.weight_dtype is Dtype.FP8:
        if hardware.peak_flops_fp8 is None:
            yield (
                f"{hardware.name} has no fp8 arithmetic: fp8 weights save memory and its traffic, and are "
                "multiplied as bf16."
            )
        elif calibration.gemm_fp8 is None:
            yield "Products in fp8 are not measured: they are priced at the bf16 shares of the fp8 peak."
    if model.weight_dtype is Dtype.INT4:
        yield "Products of int4 weights are not measured: their traffic is priced at the bf16 shares of peak."
    if model.kv_dtype is Dtype.FP8 and calibration.attention_fp8 is None:
        yield "Attention over an fp8 KV cache is not measured: priced as in bf16 with half the bytes."
    if model.decoder.moe is not None:
        yield (
            "Routed experts are not measured: they are priced like dense products of their sizes, with the "
            "tokens spread evenly over them."
        )
    if setup.ranks > 1:
        yield (
            f"{setup.engine.name} splits the experts over all ranks of a server, which exchange tokens: here "
            "every rank holds and multiplies its own; the exchange is not priced, and memory underrated."
        )


def _figures(record: object, prefix: str = "") -> Iterator[tuple[str, Figure]]:
    """Every figure of a nested record of figures, with its path."""
    if isinstance(record, Figure):
        yield prefix, record
    elif isinstance(record, Mapping):
        for key, value in record.items():
            yield from _figures(value, f"{prefix}[{key}]")
    elif is_dataclass(record):
        for field in fields(record):
            yield from _figures(getattr(record, field.name), f"{prefix}.{field.name}".lstrip("."))


def _with_unit(name: str, value: float) -> str:
    """A coefficient as text: seconds in us or ms, shares of peak in percent, rates in GB/s."""
    field = name.rpartition(".")[2].partition("[")[0]
    if field.endswith("bytes_per_s"):
        return f"{value / 1e9:.4g} GB/s"
    if field.endswith("_s"):
        return f"{value * 1e3:.4g} ms" if value >= 1e-3 else f"{value * 1e6:.4g} us"
    return f"{value:.1%} of peak" if field.endswith("_eff") else f"{value:.4g}"
