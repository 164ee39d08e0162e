"""The plan of what a search found: its best policy that the engine runs, in the files of ``recommend``."""

from __future__ import annotations

import numpy as np

from kplan.acceptance.joint import proposers_of
from kplan.config.plan import Plan
from kplan.config.scenario import Scenario
from kplan.profiles import lookup_proposers
from kplan.registry import parse_policy
from kplan.search.cases import Case
from kplan.search.optimize import Found
from kplan.search.recommend import Wanted, plan_for
from kplan.search.score import Tried
from kplan.telling import Tell, silent


def plan_of(found: Found, tried: Tried, tell: Tell = silent) -> Plan:
    """The plan of a policy that the engine runs, at the case in which its batches are the largest.

    It is simulated anew, on requests that no trial has seen, beside what ``recommend`` compares. Of several
    proposers the server holds the last, with which such a policy drafts.

    Args:
        tried: one of those measured.
        tell: told what is being done.

    Raises:
        InputError: the engine does not run the policy.
    """
    case = busiest(found, tried)
    return plan_for(_alone(case), Wanted(parse_policy(tried.policy), _chosen_by(found, case)), tell)


def busiest(found: Found, tried: Tried) -> Case:
    """The case with the largest mean batch, the first of equals."""
    batches = np.mean([[point.mean_batch for point in row] for row in tried.points], axis=0)
    return found.cases.all[int(batches.argmax())]


def _alone(case: Case) -> Scenario:
    """The scenario of a case with the seeds of its held-out replications, on a server that holds the last of
    its proposers alone."""
    scenario = case.setup.scenario
    last = proposers_of(scenario.proposer)[-1]
    changes: dict[str, object] = {"replicas": case.replicas, "seed": scenario.seed + scenario.replications}
    if last != scenario.proposer:
        drafter = None if last in lookup_proposers() else scenario.drafter
        changes |= {"proposer": last, "drafter": drafter, "switch_us": 0.0}
    return scenario.model_copy(update=changes)


def _chosen_by(found: Found, case: Case) -> str:
    tried = len({one.policy for one in (*found.all, *found.trials.measured, *found.trials.pruned)})
    told = f"kplan search chose it among {tried} policies, "
    if len(found.cases.all) > 1:
        names = ", ".join(one.name for one in found.cases.all)
        told += f"over {names}; what is said here is of {case.name}, where its batches are the largest"
    else:
        told += "which ran on other requests than these"
    proposers = proposers_of(found.scenario.proposer)
    if len(proposers) > 1:
        told += f"; of {found.scenario.proposer} it drafts with {proposers[-1]} alone"
    return f"{told}."
