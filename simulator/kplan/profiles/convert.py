"""From a validated profile file to the frozen dataclasses that the rest of kplan uses."""

from __future__ import annotations

from typing import TypeVar

from kplan.profiles import calibration as cal
from kplan.profiles import schema, schema_calibration
from kplan.profiles.drafter import Drafter, Tree
from kplan.profiles.engine import EngineProfile, GraphSizes, MemoryTier
from kplan.profiles.hardware import Hardware
from kplan.profiles.model import Model

Fit = TypeVar("Fit", cal.GemmFit, cal.AttentionFit, cal.ElementwiseFit, cal.AllReduceFit, cal.SamplerFit)


def hardware(file: schema.HardwareFile) -> Hardware:
    return Hardware(
        name=file.name,
        summary=file.summary,
        memory_bytes=file.memory_bytes.figure(file.sources),
        bandwidth_bytes_s=file.bandwidth_bytes_s.figure(file.sources),
        peak_flops=file.peak_flops.figure(file.sources),
        peak_flops_fp8=None if file.peak_flops_fp8 is None else file.peak_flops_fp8.figure(file.sources),
        link_bytes_s=None if file.link_bytes_s is None else file.link_bytes_s.figure(file.sources),
        is_host=file.is_host,
        provenance=file.provenance.provenance(),
    )


def model(file: schema.ModelFile) -> Model:
    return Model(
        name=file.name,
        hf_id=file.hf_id,
        summary=file.summary,
        decoder=file.decoder.decoder(),
        tied_embeddings=file.tied_embeddings,
        weight_dtype=file.weight_dtype,
        kv_dtype=file.kv_dtype,
        mtp_layers=file.mtp_layers,
        max_context=file.max_context,
        provenance=file.provenance.provenance(),
    )


def drafter(file: schema.DrafterFile) -> Drafter:
    return Drafter(
        name=file.name,
        proposer=file.proposer,
        kind=file.kind,
        hf_id=file.hf_id,
        targets=file.targets,
        engine_methods=file.engine_methods,
        summary=file.summary,
        decoder=None if file.decoder is None else file.decoder.decoder(),
        fused_hidden=file.fused_hidden,
        fuses_every_pass=file.fuses_every_pass,
        own_embedding=file.own_embedding,
        own_head=file.own_head,
        weight_dtype=file.weight_dtype,
        kv_dtype=file.kv_dtype,
        tree=None if file.tree is None else Tree(**file.tree.model_dump()),
        kv_budget=file.kv_budget,
        provenance=file.provenance.provenance(),
    )


def engine(file: schema.EngineFile) -> EngineProfile:
    tiers = sorted(file.tiers, key=lambda tier: -tier.min_memory_gb)
    return EngineProfile(
        name=file.name,
        version=file.version,
        summary=file.summary,
        block_size=file.block_size,
        tiers=tuple(MemoryTier(**tier.model_dump()) for tier in tiers),
        max_num_seqs_with_drafts=file.max_num_seqs_with_drafts,
        graphs=GraphSizes(**file.graphs.model_dump()),
        async_scheduling=file.async_scheduling,
        sync_methods=frozenset(file.sync_methods),
        table_methods=frozenset(file.table_methods),
        table_piecewise=file.table_piecewise,
        captured_drafts=file.captured_drafts,
        gpu_memory_utilization=file.gpu_memory_utilization,
        small_tier_hardware=frozenset(file.small_tier_hardware),
        provenance=file.provenance.provenance(),
    )


def calibration(file: schema_calibration.CalibrationFile) -> cal.Calibration:
    def fit(cls: type[Fit], entry: schema.Entry) -> Fit:
        fields: dict[str, schema.FigureEntry] = {name: each for name, each in entry if each is not None}
        return cls(**{name: figure.figure(file.sources) for name, figure in fields.items()})

    def host(entry: schema_calibration.HostEntry) -> cal.HostFit:
        times = {name: each for name, each in entry if each is not None}
        pass_s = {name: figure.figure(file.sources) for name, figure in times.pop("pass_s").items()}
        return cal.HostFit(pass_s=pass_s, **{n: figure.figure(file.sources) for n, figure in times.items()})

    return cal.Calibration(
        hardware=file.hardware,
        summary=file.summary,
        gemm=fit(cal.GemmFit, file.gemm),
        gemm_alternate=None if file.gemm_alternate is None else fit(cal.GemmFit, file.gemm_alternate),
        gemm_fp8=None if file.gemm_fp8 is None else fit(cal.GemmFit, file.gemm_fp8),
        attention=fit(cal.AttentionFit, file.attention),
        attention_fp8=None if file.attention_fp8 is None else fit(cal.AttentionFit, file.attention_fp8),
        elementwise=fit(cal.ElementwiseFit, file.elementwise),
        all_reduce={ranks: fit(cal.AllReduceFit, entry) for ranks, entry in file.all_reduce.items()},
        sampler=fit(cal.SamplerFit, file.sampler),
        host=host(file.host),
        host_alternate=None if file.host_alternate is None else host(file.host_alternate),
        provenance=file.provenance.provenance(),
    )
