"""What a search found, as a record, a table and files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from kplan.formats import KEY, SEARCH
from kplan.registry import parse_policy
from kplan.search.evaluate import why_not_runnable
from kplan.search.optimize import Found
from kplan.search.score import Ratio, Tried, careful, front, lowest, ratio


@dataclass(frozen=True)
class Verdict:
    """The choice.

    Attributes:
        best: chosen with care (see kplan.search.score.careful) among all that keep up and meet the SLOs; of
            two objectives the first decides. None when nothing does.
        runnable: the same among those that the engine runs today.
        lowest: the best mean there.
        front: policies that no other beats in both objectives; empty with one objective.
    """

    best: Tried | None
    runnable: Tried | None
    lowest: Tried | None
    front: tuple[Tried, ...]


def judge(found: Found) -> Verdict:
    """Choose among everything that was measured on the held-out replications."""
    objectives, base = found.asked.objectives, found.greedy
    able = [one for one in found.all if not why_not(found, one)]
    return Verdict(
        best=careful(found.all, base, objectives[0]),
        runnable=careful(able, base, objectives[0]),
        lowest=lowest(found.all, base, objectives[0]),
        front=tuple(front(found.all, base, objectives)) if len(objectives) > 1 else (),
    )


def why_not(found: Found, tried: Tried) -> str:
    """Why the engine cannot run a policy today, "" when it can."""
    return why_not_runnable(found.cases.first, parse_policy(tried.policy))


def words(found: Found, verdict: Verdict) -> str:
    """The answer in one or two sentences."""
    over = f"{len(found.cases.all)} load{'s' if len(found.cases.all) > 1 else ''}"
    if verdict.best is None:
        return f"No policy keeps up and meets the SLOs at every one of {over}: add replicas, or loosen them."
    objective, best = found.asked.objectives[0], verdict.runnable or verdict.best
    told = f"Over {over} the best {objective} is that of {best.policy}"
    told += f", {_better(ratio(best, found.greedy, objective))} the greedy table {found.greedy.policy}"
    if found.oracle.feasible:
        told += f" and {_better(ratio(best, found.oracle, objective))} the oracle"
    if best is not verdict.best:
        told += f". {verdict.best.policy} is better, but {why_not(found, verdict.best)}"
    return f"{told}."


def _better(one: Ratio) -> str:
    """A ratio in words; a tie is called a tie."""
    if one.mean == 1 or (one.ci95 is not None and one.ci95[0] <= 1 <= one.ci95[1]):
        return "level with"
    share = f"{abs(1 - one.mean):.1%} {'below' if one.mean < 1 else 'above'}"
    return share if one.ci95 is not None else f"{share} (one replication, so no interval)"


def record(found: Found, verdict: Verdict) -> dict[str, Any]:
    """All of it as JSON.

    ``gaps``: the chosen policy's figure over that of each reference, below 1 where the chosen one is better,
    with the paired 95% interval and a ``verdict``: better, worse or tie (null and unknown with one seed).
    Every figure is of the held-out replications, ``seeds``.
    """
    chosen = verdict.runnable or verdict.best
    trials = found.trials
    return {
        KEY: SEARCH.version,
        "feasible": verdict.best is not None,
        "words": words(found, verdict),
        "objectives": list(found.asked.objectives),
        "best": _told(found, verdict.best),
        "runnable": _told(found, verdict.runnable),
        "lowest": _told(found, verdict.lowest),
        "greedy": _told(found, found.greedy),
        "front": [_told(found, one) for one in verdict.front],
        "gaps": [] if chosen is None else [gap(found, chosen, one) for one in against(found)],
        "importances": found.importances,
        "trials": {
            "done": trials.done,
            "measured": len(trials.measured),
            "pruned": len(trials.pruned),
            "refused": trials.refused,
            "found": trials.found,
            "policies": len({one.policy for one in (*trials.measured, *trials.pruned)}),
        },
        "cases": [case.name for case in found.cases.all],
        "replications": found.cases.replications,
        "seeds": [found.scenario.seed + one for one in found.cases.held_out],
        "requests": [len(case.drawn[0].prompt_len) for case in found.cases.all],
        "storage": found.storage,
        "study": found.study,
        "identity": found.identity,
        "wall_s": found.wall_s,
    }


def against(found: Found) -> list[Tried]:
    """What the chosen policy is held against: the greedy table, the oracle, no speculation, every fixed K."""
    return [found.greedy, found.oracle, *found.references]


def gap(found: Found, chosen: Tried, other: Tried) -> dict[str, Any]:
    """The chosen policy against another, by objective."""
    ratios = {name: ratio(chosen, other, name) for name in found.asked.objectives}
    return {
        "policy": other.policy,
        "feasible": other.feasible,
        **{
            name: {"ratio": one.mean, "ci95": one.ci95, "verdict": _verdict(one)}
            for name, one in ratios.items()
        },
    }


def _verdict(one: Ratio) -> str:
    if one.ci95 is None:
        return "unknown"
    if one.ci95[0] <= 1 <= one.ci95[1]:
        return "tie"
    return "better" if one.mean < 1 else "worse"


def _told(found: Found, tried: Tried | None) -> dict[str, Any] | None:
    if tried is None:
        return None
    reason = why_not(found, tried)
    return {
        "policy": tried.policy,
        "runnable": not reason,
        "why_not": reason,
        "feasible": tried.feasible,
        "mean_k": tried.mean_k,
        "of_greedy": {name: ratio(tried, found.greedy, name).mean for name in found.asked.objectives},
        "cases": [
            {
                "case": case.name,
                "tpot_ms": _mean(tried, i, "tpot_s") * 1e3,
                "ttft_ms": _mean(tried, i, "ttft_s") * 1e3,
                "sustained_tok_s": _mean(tried, i, "tok_s"),
                "gpu_s_per_million_tokens": _gpus(found) * case.replicas / _mean(tried, i, "tok_s") * 1e6,
                "slo_share": _mean(tried, i, "met"),
                "saturated": _mean(tried, i, "overload") > 0,
                "mean_batch": _mean(tried, i, "mean_batch"),
                "mean_k": _mean(tried, i, "mean_k"),
            }
            for i, case in enumerate(found.cases.all)
        ],
    }


def _mean(tried: Tried, case: int, field: str) -> float:
    return float(np.mean([getattr(row[case], field) for row in tried.points]))


def _gpus(found: Found) -> int:
    return found.scenario.tp * found.scenario.dp


def contents(found: Found, verdict: Verdict) -> dict[str, str | bytes]:
    """search.json and trials.parquet (one row for every policy, case and replication; those of the held-out
    replications follow those of the trials), by file name."""
    import pandas as pd

    groups = {
        "greedy": [found.greedy],
        "oracle": [found.oracle],
        "reference": found.references,
        "finalist": found.finalists,
        "measured": found.trials.measured,
        "pruned": found.trials.pruned,
    }
    searched = ("measured", "pruned")
    rows = [
        {
            "kind": kind,
            "place": place,
            "policy": one.policy,
            "replication": replication + (0 if kind in searched else found.cases.replications),
            "case": found.cases.all[case].name,
            **vars(point),
        }
        for kind, group in groups.items()
        for place, one in enumerate(group)
        for replication, row in enumerate(one.points)
        for case, point in enumerate(row)
    ]
    trials = BytesIO()
    pd.DataFrame(rows).to_parquet(trials, index=False)
    text = json.dumps(record(found, verdict), indent=2, allow_nan=False)
    return {"search.json": text + "\n", "trials.parquet": trials.getvalue()}
