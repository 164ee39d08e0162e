"""``kplan simulate``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli import complete
from kplan.cli import options as o
from kplan.cli.groups import LIMITS, LOAD, RUNS, SERVED, SLOS, Group, grouped, of

if TYPE_CHECKING:
    from kplan.config.plan import PolicyResult

DEFAULT_REPLICATIONS, OF_A_LOG = 5, 3
"""Enough for an interval; a number of requests that the user gives is simulated once, as given."""

_SERVED = of(SERVED, SLOS, RUNS, LIMITS)


@grouped
def simulate(
    scenario: Annotated[Path | None, typer.Argument(help="scenario YAML; flags win over it")] = None,
    load: Group = LOAD,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            autocompletion=complete.policies,
            help="off, fixed:3, table:1-64=3,65-=1, sglang-ema, match-else, my.py:MyPolicy ... [fixed:3]",
        ),
    ] = None,
    served: Group = _SERVED,
    records: Annotated[
        Path | None,
        typer.Option(
            "--records",
            help="folder for every step and request of every replication: steps.parquet, requests.parquet, "
            "run.json",
        ),
    ] = None,
    json: o.Json = False,
) -> int:
    """Simulate one policy on one load and report what it did, beside no speculation on the same requests.

    By default five replications (three of a log), for the intervals; with --requests one of just that many.

    Exit code 1 when the load saturates the replicas (their queue grows, so no mean is reported) or the SLO is
    missed.
    """
    from kplan.cli.output import print_json, prose, say
    from kplan.cli.policy_table import POLICY_COLUMNS, policy_row
    from kplan.cli.progress import progress
    from kplan.cli.tables import print_table

    question = o.scenario_of(scenario, {**load, **served, "policy": policy}, {})
    if question.requests is None and "replications" not in question.model_fields_set:
        question = question.model_copy(
            update={"replications": OF_A_LOG if question.replay else DEFAULT_REPLICATIONS}
        )
    start = time.perf_counter()
    with progress() as tell:
        from kplan.search.evaluate import ATTAINMENT
        from kplan.search.phrases import within_text
        from kplan.search.single import simulate_one

        run = simulate_one(question, tell, records)
    counts = {
        "requests": run.requests,
        "steps": run.steps,
        "output_tokens": run.output_tokens,
        "wall_s": time.perf_counter() - start,
    }
    if json:
        print_json(
            run.result.model_dump(mode="json")
            | counts
            | ({"mix": run.mix.model_dump(mode="json")} if run.mix else {})
            | {"meets_slo": run.meets_slo, "slo_share": run.slo_share}
            | {"notes": list(run.notes), "files": [str(one) for one in run.files]}
            | {"scenario_hash": run.scenario_hash, "seed": run.seed}
        )
    else:
        shown = ([run.off] if run.off.name != run.result.name else []) + [run.result]
        print_table(
            f"{run.requests} requests, {run.steps} steps, {run.output_tokens:,} output tokens "
            f"in {counts['wall_s']:.2f} s",
            POLICY_COLUMNS,
            [policy_row(one, exportable_mark=False) for one in shown],
        )
        if settled := [one for one in shown if not one.saturated]:
            print_table("over the requests", PERCENTILE_COLUMNS, [_percentiles(one) for one in settled])
        if run.mix is not None:
            shares = ", ".join(f"{name} {share:.1%}" for name, share in run.mix.proposer_share.items())
            prose(
                f"request-steps by who drafted: {shares}; {run.mix.switches_per_1000:.1f} changes per 1,000"
            )
        if run.result.max_qps_slo is not None:
            replicas_serve = "they serve" if (question.replicas or 1) > 1 else "it serves"
            prose(within_text(replicas_serve, run.result.max_qps_slo))
        if not run.meets_slo:
            prose(f"the SLO is missed: {run.slo_share:.1%} of requests meet it, and {ATTAINMENT:.0%} must")
        for note in run.notes:
            prose(f"note: {note}")
        for path in run.files:
            say(f"wrote {path}")
    return 1 if run.result.saturated or not run.meets_slo else 0


PERCENTILE_COLUMNS = ("policy", "TPOT ms P50", "P99", "TTFT ms P50", "P99")


def _percentiles(result: PolicyResult) -> list[str]:
    """One policy as a row of PERCENTILE_COLUMNS."""
    tpot, ttft = result.tpot_ms, result.ttft_ms
    return [
        result.name,
        f"{tpot.p50:.2f}" if tpot else "-",
        f"{tpot.p99:.2f}" if tpot else "-",
        f"{ttft.p50:.1f}" if ttft else "-",
        f"{ttft.p99:.1f}" if ttft else "-",
    ]
