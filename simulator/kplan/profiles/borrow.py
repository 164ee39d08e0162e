"""A calibration for a GPU that has none: another GPU's shares of peak, every figure marked as assumed."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from kplan.profiles.calibration import Calibration
from kplan.profiles.figures import scaled
from kplan.profiles.hardware import Hardware
from kplan.provenance import Figure, Kind, Provenance


def borrow(lent: Calibration, lender: Hardware, hardware: Hardware) -> Calibration:
    """The calibration of ``lender`` for ``hardware``.

    Shares of peak, launch times and host times are taken as they are; the all-reduce rates are scaled by the
    ratio of link bandwidths, and without a link there is no all-reduce. No figure keeps a standard error: it
    would say nothing of the other GPU.
    """
    assumed = _relabelled(lent, lender.name)
    assert isinstance(assumed, Calibration)
    ratio = 0.0
    if lender.link_bytes_s is not None and hardware.link_bytes_s is not None:
        ratio = hardware.link_bytes_s.value / lender.link_bytes_s.value
    linked = {
        n: replace(
            fit,
            one_shot_bytes_per_s=scaled(fit.one_shot_bytes_per_s, ratio),
            bytes_per_s=scaled(fit.bytes_per_s, ratio),
        )
        for n, fit in assumed.all_reduce.items()
    }
    return replace(
        assumed,
        hardware=hardware.name,
        summary=f"not calibrated: the shares of peak of {lender.name}",
        all_reduce=linked if ratio else {},
        provenance=Provenance(Kind.ASSUMED, f"borrowed from {lender.name}: {lent.provenance.source}"),
        borrowed_from=lender.name,
    )


def _relabelled(record: Any, lender: str) -> Any:
    """The record with every figure in it assumed, and its source said to be borrowed."""
    if isinstance(record, Figure):
        source = f"borrowed from {lender}: {record.provenance.source}"
        return Figure(record.value, Provenance(Kind.ASSUMED, source, record.provenance.note))
    if isinstance(record, dict):
        return {key: _relabelled(value, lender) for key, value in record.items()}
    if is_dataclass(record) and not isinstance(record, type):
        return replace(
            record, **{f.name: _relabelled(getattr(record, f.name), lender) for f in fields(record)}
        )
    return record
