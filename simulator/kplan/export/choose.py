"""Which policy of a plan an engine can run: the recommended one, or the best of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kplan.config.plan import Plan, PolicyResult
from kplan.errors import InputError
from kplan.export.table import KRange, check_table, compress
from kplan.policy import Policy, TablePolicy
from kplan.registry import names_code, parse_policy, refuse_code

ContextRange = tuple[int, int | None, int, int | None, int]
"""Batch from, to (None: no end), mean context from, to, and K."""


@dataclass(frozen=True)
class Table:
    """K by batch size; a fixed K is a table of one range."""

    ranges: tuple[KRange, ...]

    @property
    def max_k(self) -> int:
        """The largest K of any batch size; 0 means that nothing is ever drafted."""
        return max(r.k for r in self.ranges)

    @property
    def start_k(self) -> int:
        """K that a server is started with: the largest, which it must have memory for."""
        return self.max_k

    @property
    def fixed(self) -> bool:
        """True when the batch size makes no difference."""
        return len({r.k for r in self.ranges}) == 1


@dataclass(frozen=True)
class Ladder:
    """SGLang's adaptive steps: the content of its JSON file, and the candidate to start with."""

    slots: Mapping[str, Any]
    start_k: int

    @property
    def max_k(self) -> int:
        """The largest candidate."""
        return max(
            int(k) for key, slot in self.slots.items() if key.isdigit() for k in slot["candidate_steps"]
        )


@dataclass(frozen=True)
class Rule:
    """A policy in the terms of engines.

    Attributes:
        text: of the policy.
        form: None when no engine has a word for it.
        by_context: (batch from, to, context from, to, K) of a policy that looks at the context too, of which
            ``form`` is the part at ``context`` tokens; else empty.
    """

    text: str
    form: Table | Ladder | None
    by_context: tuple[ContextRange, ...] = ()
    context: int = 0


@dataclass(frozen=True)
class Choice:
    """What is written for an engine.

    Attributes:
        rule: the policy.
        result: what the plan predicts for it, None when the plan did not simulate it.
        replaced: why the recommended policy is not written, "" when it is.
    """

    rule: Rule
    result: PolicyResult | None
    replaced: str


@runtime_checkable
class LadderPolicy(Protocol):
    """A policy that SGLang's adaptive JSON describes."""

    @property
    def initial_k(self) -> int:
        """K at the start, one of the candidate steps."""
        ...

    def config(self) -> Mapping[str, Any]:
        """The content of the JSON file that makes SGLang run this policy."""
        ...


@runtime_checkable
class ContextPolicy(Protocol):
    """A policy whose K depends on the batch size and on the mean context of its requests."""

    @property
    def ranges(self) -> Sequence[ContextRange]:
        """Its entries, sorted."""
        ...

    def batch_table(self, context: int) -> TablePolicy:
        """The part of it at one mean context, which released engines can run."""
        ...


def choose(plan: Plan, cannot_run: Callable[[Rule], str]) -> Choice:
    """The recommended policy when the engine runs it, else the best of ``plan.policies`` that it runs.

    ``PolicyResult.exportable`` speaks of the engine that the plan was made for, so it is not asked here: the
    policy itself says whether any engine can run it, and ``cannot_run`` whether this one can.

    Args:
        plan: the plan.
        cannot_run: says why the engine cannot run a rule, "" when it can.

    Raises:
        InputError: no engine can run the recommended policy, its table is not one that an engine would read
            as meant, or no policy of the plan runs on this engine.
    """
    answer = _answer_rule(plan)
    why = cannot_run(answer)
    if not why:
        result = next((r for r in plan.policies if r.name == plan.answer.policy), None)
        return Choice(answer, result, "")
    for result in _best_first(plan):
        rule = _rule(result.name, plan.question.max_num_seqs)
        if not cannot_run(rule):
            return Choice(rule, result, why)
    raise InputError(
        "policy", answer.text, why, "plan again: none of the policies compared runs on this engine"
    )


def _answer_rule(plan: Plan) -> Rule:
    """The answer's own table or K is the contract; the policy text is read when it has neither."""
    answer, question = plan.answer, plan.question
    if answer.table is not None:
        return Rule(answer.policy, Table(check_table(answer.table, question.max_num_seqs, question.max_k)))
    if answer.k is not None:
        if not 0 <= answer.k <= question.max_k:
            raise InputError("K", answer.k, f"must be 0..{question.max_k} (max_k of the plan)", "plan again")
        return Rule(answer.policy, Table((KRange(1, question.max_num_seqs, answer.k),)))
    refuse_code(answer.policy, "the plan")
    spec = parse_policy(answer.policy)
    policy = spec.build()
    if isinstance(policy, ContextPolicy):
        return _at_mean_context(plan, policy)
    if not spec.exportable:
        raise InputError(
            "policy",
            answer.policy,
            f"no engine can run it ({spec.why_not})",
            "export a plan that recommends off, fixed:K, a batch table or sglang-ema",
        )
    return _rule(answer.policy, question.max_num_seqs)


def _at_mean_context(plan: Plan, policy: ContextPolicy) -> Rule:
    """The table by batch size that the policy is at the mean context of this load."""
    text = plan.answer.policy
    seen = [r.mean_context for r in plan.policies if r.name == text] or [p.context for p in plan.k_curve]
    if not seen:
        raise InputError(
            "policy", text, "no engine looks at the context, and the plan does not say the load's",
            "export a plan that simulated it",
        )  # fmt: skip
    context = round(seen[0])
    ks = policy.batch_table(context).table(plan.question.max_num_seqs)
    return Rule(text, Table(compress(ks)), tuple(policy.ranges), context)


def _rule(text: str, max_num_seqs: int) -> Rule:
    if names_code(text):  # of the plan, which may be another's: not run, and no engine could
        return Rule(text, None)
    spec = parse_policy(text)
    if not spec.exportable:
        return Rule(text, None)
    policy: Policy = spec.build()
    if isinstance(policy, TablePolicy):
        return Rule(text, Table(compress(policy.table(max_num_seqs))))
    if isinstance(policy, LadderPolicy):
        return Rule(text, Ladder(policy.config(), policy.initial_k))
    return Rule(text, None)


def _best_first(plan: Plan) -> Iterator[PolicyResult]:
    """Policies that keep up with the load first; of those, the most good requests, then the lowest mean TPOT.

    Goodputs within 1% count as equal: replications do not tell them apart.
    """
    others = [r for r in plan.policies if r.name != plan.answer.policy]
    best_qps = max((r.goodput_qps for r in others if not r.saturated), default=0.0)

    def rank(result: PolicyResult) -> tuple[bool, bool, float, float]:
        tpot_ms = result.tpot_ms.mean if result.tpot_ms is not None else float("inf")
        return result.saturated, result.goodput_qps < 0.99 * best_qps, tpot_ms, -result.output_tok_s

    yield from sorted(others, key=rank)
