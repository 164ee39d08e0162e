"""Evidence to draw in tests. The figures are invented and stand for nothing measured."""

from __future__ import annotations

from kplan.config.evidence import (
    Change,
    Crossing,
    Depth,
    Evidence,
    Front,
    FrontPoint,
    KMap,
    Sensitivity,
    SloCurve,
    Sweep,
    SweepCurve,
    SweepPoint,
)
from kplan.config.plan import Plan
from tests.export.sample import TABLE_TEXT, make_plan

LOADS = (10.0, 30.0, 50.0, 64.0, 90.0)
SHARES = (0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0)


def point(load: float, tpot_ms: float | None) -> SweepPoint:
    """Saturated where there is no TPOT."""
    return SweepPoint(
        load=load,
        batch=None if tpot_ms is None else load * tpot_ms / 8,
        context=None if tpot_ms is None else 500.0,
        tpot_ms=tpot_ms,
        tpot_ci95=None if tpot_ms is None else (tpot_ms - 0.3, tpot_ms + 0.3),
        output_tok_s=200.0 * min(load, 70.0),
        output_tok_s_ci95=(199.0 * min(load, 70.0), 201.0 * min(load, 70.0)),
        saturated=tpot_ms is None,
    )


def curve(policy: str, *tpots: float | None) -> SweepCurve:
    return SweepCurve(policy=policy, points=tuple(map(point, LOADS, tpots)))


def evidence(**changes: object) -> Evidence:
    """As a recommendation of the table at 64 requests/s would bring; acceptance is recorded up to K = 5."""
    fields: dict[str, object] = {
        "sweep": Sweep(
            unit="requests/s",
            asked=64.0,
            replications=5,
            curves=(
                curve("off", 7.0, 9.0, 13.0, 18.4, None),
                curve("fixed:3", 4.0, 6.0, 9.4, 11.6, None),
                curve(TABLE_TEXT, 4.2, 6.1, 9.0, 11.2, None),
            ),
            crossings=(Crossing(below="fixed:3", above=TABLE_TEXT, load=35.0, ci95=(31.0, 39.0)),),
        ),
        "k_map": KMap(
            batches=(1, 2, 4, 8, 16, 32, 64, 128),
            contexts=(128, 1024, 8192),
            best_k=((4, 4, 4, 4, 3, 3, 1, 0), (4, 4, 4, 4, 4, 3, 3, 1), (4, 4, 4, 4, 4, None, None, None)),
            gain=(
                (2.2, 2.2, 2.1, 2.0, 1.8, 1.5, 1.1, 1.0),
                (2.2, 2.2, 2.1, 2.1, 2.0, 1.7, 1.4, 1.1),
                (2.3, 2.3, 2.2, 2.2, 2.1, None, None, None),
            ),
            visited=(78, 120),
        ),
        "acceptance": tuple(Depth(draft=d, kept=0.7**d, conditional=0.7, known=d <= 5) for d in range(1, 8)),
        "slo": tuple(
            SloCurve(
                policy=name,
                shares=SHARES,
                tpot_ms=tuple(mean * (0.6 + 0.8 * share) for share in SHARES),
                ttft_ms=tuple(40.0 + 200.0 * share for share in SHARES),
            )
            for name, mean in (("off", 18.4), ("fixed:3", 11.6), (TABLE_TEXT, 11.2))
        ),
        "front": Front(
            best=tuple(
                FrontPoint(k=k, batch=b, tpot_ms=4 + b / 20, tok_s_gpu=1e3 * b / (4 + b / 20))
                for k, b in ((4, 1), (4, 8), (3, 32), (3, 64), (1, 128))
            ),
            off=tuple(
                FrontPoint(k=0, batch=b, tpot_ms=7 + b / 18, tok_s_gpu=1e3 * b / (7 + b / 18))
                for b in (1, 8, 32, 64, 128)
            ),
        ),
        "sensitivity": Sensitivity(
            changes=(
                change("as asked", (18.4, 14.1, 12.2, 11.6, 12.4, 14.9, None, None), 3, 3),
                change("acceptance -20%", (18.4, 14.8, 14.6, 16.0, None, None, None, None), 3, 2),
                change("acceptance +20%", (18.4, 13.2, 10.9, 9.8, 9.75, 10.4, 12.0, 15.0), 3, 3),
                change("context 4x", (None,) * 8, 3, None),
                change("other GEMM times", (14.0, 9.0, None, None, None, None, None, None), 3, 1),
            ),
            closed_ms=10.6,
        ),
        "limits": ("The acceptance of eagle3 is that of another model.",),
    }
    return Evidence.model_validate(fields | changes)


def change(name: str, tpot_ms: tuple[float | None, ...], kept: int, best: int | None) -> Change:
    kept_ms = tpot_ms[kept]
    known = [one for one in tpot_ms if one is not None]
    loss = None if kept_ms is None else kept_ms / min(known) - 1
    return Change(name=name, tpot_ms=tpot_ms, kept_k=kept, best_k=best, loss=loss)


def pictured(**changes: object) -> Plan:
    """The plan of the samples with evidence; ``changes`` are of the plan."""
    return make_plan(**({"evidence": evidence()} | changes))
