"""The table of policies that several commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kplan.cli.tables import Column

if TYPE_CHECKING:
    from kplan.config.plan import PolicyResult

POLICY_COLUMNS = (
    "policy",
    "TPOT ms",
    Column("95%", spare=4),
    "TTFT ms",
    Column("P99", spare=3),
    "tok/s",
    Column("goodput/s", spare=2),
    "vs off",
    Column("batch", spare=1),
    "K",
    Column("tok/step", spare=5),
)


def policy_row(result: PolicyResult, exportable_mark: bool = True) -> list[str]:
    """One policy as a row of POLICY_COLUMNS."""
    name = result.name + ("" if result.exportable or not exportable_mark else " *")
    if result.saturated:
        timing = ["saturated", "", "", ""]
    else:
        tpot, ttft = result.tpot_ms, result.ttft_ms
        timing = [
            f"{tpot.mean:.2f}" if tpot else "-",
            f"{tpot.ci95[0]:.2f}..{tpot.ci95[1]:.2f}" if tpot and tpot.ci95 else "-",
            f"{ttft.mean:.1f}" if ttft else "-",
            f"{ttft.p99:.1f}" if ttft else "-",
        ]
    return [
        name,
        *timing,
        f"{result.output_tok_s:,.0f}",
        f"{result.goodput_qps:.1f}",
        f"{result.speedup_vs_off:.2f}x" if result.speedup_vs_off is not None else "-",
        f"{result.mean_batch:.1f}",
        f"{result.mean_k:.2f}",
        f"{result.acceptance_length:.2f}",
    ]
