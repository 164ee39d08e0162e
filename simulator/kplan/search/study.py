"""The search: an Optuna study over policy families, tried on every case and seed by several workers.

Trials are asked for TOGETHER at a time, whatever the number of workers, each from a sampler seeded by its own
number in the study: the same arguments give the same trials on one worker or many, and after a kill. Every
trial runs on the same requests (common random numbers). Its value is the mean logarithm of its figure over
that of the greedy table, the one which the latency model alone gives and which is always measured first.

Seeds are pruning steps: a trial whose paired interval says that it is worse than the best, or that cannot
serve what the best does, gets no further ones.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field

import optuna
from optuna.trial import FrozenTrial, TrialState

from kplan.errors import InputError
from kplan.search.cases import Cases, Point, Task
from kplan.search.executor import Workers
from kplan.search.families import Space
from kplan.search.samplers import make_sampler
from kplan.search.score import Tried, log_ratios, lowest, ratio, worse
from kplan.search.storage import Coordinators, Patience
from kplan.telling import Tell

TOGETHER = 8
"""Trials that are asked for at once, whatever the number of workers: so it cannot change what is tried."""
PAIR = 2
"""Seeds of the first step: the fewest that have an interval."""
POLL_S = 0.5
"""Pause while other coordinators finish the last trials."""


@dataclass(frozen=True)
class Trials:
    """All that a study holds.

    Attributes:
        measured: those run on every seed, in the order asked.
        pruned: those stopped before, with the seeds they had.
        refused: parameters that their class did not take.
        found: finished before this search began.
    """

    measured: tuple[Tried, ...]
    pruned: tuple[Tried, ...]
    refused: int
    found: int = field(default=0, compare=False)

    @property
    def done(self) -> int:
        """How many are finished."""
        return len(self.measured) + len(self.pruned) + self.refused


@dataclass(frozen=True)
class Rules:
    """How a study is run.

    Attributes:
        trials: how many, over all coordinators.
        width: stop when the paired interval of the best against the next best is narrower; None: never.
    """

    objectives: tuple[str, ...]
    trials: int
    sampler: str
    seed: int
    width: float | None = None


class Searching:
    """One coordinator's part in a study.

    Args:
        references: measured before any trial, the greedy table first (see :meth:`measure`).
        tell: told how far it is.
    """

    def __init__(
        self,
        study: optuna.Study,
        cases: Cases,
        workers: Workers[Task, Point],
        space: Space,
        rules: Rules,
        references: Sequence[Tried],
        patience: Patience,
        tell: Tell,
    ) -> None:
        self._study, self._cases, self._workers = study, cases, workers
        self._space, self._rules, self._references = space, rules, tuple(references)
        self._patience, self._tell = patience, tell
        self._coordinators = Coordinators(study)
        self._single = len(rules.objectives) == 1

    def run(self) -> Trials:
        """Try until the study has its trials, or its interval is narrow."""
        found = self._trials().done
        self._patience(self._enqueue)
        with self._coordinators.alive():
            self._progress()
            while self._more():
                self._progress()
        trials = self._trials()
        return Trials(trials.measured, trials.pruned, trials.refused, found)

    def _more(self) -> bool:
        """Do the next batch; False when the search is over."""
        before = self._trials()
        if self._narrow(before):
            return False
        running = self._patience(lambda: self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))
        left = [one for one in running if self._coordinators.left(one)]
        others = len(running) - len(left)
        room = min(TOGETHER - before.done % TOGETHER, self._rules.trials - before.done - others)
        if room > 0:
            asked: list[FrozenTrial | None] = [*left[:room], *[None] * (room - len(left))]
            batch = [self._patience(lambda one=one: self._ask(one)) for one in asked]  # type: ignore[misc]
            earlier = self._trials(before.done - before.done % TOGETHER)
            self._try([one for one in batch if one is not None], earlier)
        elif others:
            time.sleep(POLL_S)
        return room > 0 or others > 0

    def _enqueue(self) -> None:
        if not self._study.get_trials(deepcopy=False):
            for params in self._space.first():
                self._study.enqueue_trial(params, skip_if_exists=True)

    def _ask(self, left: FrozenTrial | None) -> tuple[optuna.Trial, str] | None:
        """A trial and its policy; None when its class refuses the parameters, or others were faster.

        Args:
            left: one that a dead coordinator left, to go on with; should another one go on with it too, they
                find the same. None: a new one.
        """
        trials = self._study.get_trials(deepcopy=False)
        waiting = [one.number for one in trials if one.state == TrialState.WAITING]
        place = min(waiting, default=len(trials)) if left is None else left.number
        self._seed(place)
        trial = self._study.ask() if left is None else optuna.Trial(self._study, left._trial_id)
        if trial.number - sum(map(_surplus, trials)) >= self._rules.trials:
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        trial.set_user_attr("owner", self._coordinators.me)
        try:
            policy = self._space.spec(trial, lambda name: self._seed(place, name)).text
        except InputError as error:
            trial.set_user_attr("refused", str(error))
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        trial.set_user_attr("policy", policy)
        return trial, policy

    def _seed(self, *place: int | str) -> None:
        """Give the sampler the chance of one trial, or of one of its parameters, wherever it was left."""
        self._study.sampler = make_sampler(self._rules.sampler, self._rules.seed, *place)

    def _try(self, batch: Sequence[tuple[optuna.Trial, str]], earlier: Trials) -> None:
        """Measure the policies of a batch seed by seed, and tell the study.

        Args:
            earlier: what was finished when the batch was begun, by whoever began it.
        """
        known = {one.policy: one for one in (*self._references, *earlier.measured)}
        base, objective = self._references[0], self._rules.objectives[0]
        best = lowest(tuple(known.values()), base, objective)
        fresh = list(dict.fromkeys(policy for _, policy in batch if policy not in known))
        found = self._measured(fresh, best)
        for trial, policy in batch:
            tried = known.get(policy) or found[policy]
            self._patience(lambda trial=trial, tried=tried: self._told(trial, tried))  # type: ignore[misc]

    def _steps(self) -> list[range]:
        """Seeds by pruning step; all at once where a trial has several values."""
        count = self._cases.replications
        if not self._single or count <= PAIR:
            return [range(count)]
        return [range(PAIR), *[range(one, one + 1) for one in range(PAIR, count)]]

    def _measured(self, policies: Sequence[str], best: Tried | None) -> dict[str, Tried]:
        """What each of ``policies`` shows, step by step; one worse than ``best`` gets no further seeds.

        No policy waits for another: its next step begins when its own last one is done.
        """
        steps, cases = self._steps(), range(len(self._cases.all))
        asked = [task for policy in policies for task in self._cases.tasks(policy, steps[0])]
        taken = dict.fromkeys(policies, 1)
        points: dict[str, dict[tuple[int, int], Point]] = {policy: {} for policy in policies}

        def tried(policy: str) -> Tried:
            seeds, own = steps[taken[policy] - 1].stop, points[policy]
            return Tried(policy, tuple(tuple(own[seed, case] for case in cases) for seed in range(seeds)))

        def more(place: int, point: Point) -> Sequence[Task]:
            policy, seed, case = astuple(asked[place])
            points[policy][seed, case] = point
            step = taken[policy]
            if len(points[policy]) < steps[step - 1].stop * len(cases) or step == len(steps):
                return ()
            if best is not None and self._single and worse(tried(policy), best, self._rules.objectives[0]):
                return ()
            taken[policy] += 1
            added = self._cases.tasks(policy, steps[step])
            asked.extend(added)
            return added

        self._workers.grow(tuple(asked), more)
        return {policy: tried(policy) for policy in policies}

    def _told(self, trial: optuna.Trial, tried: Tried) -> None:
        logs = [log_ratios(tried, self._references[0], name) for name in self._rules.objectives]
        trial.set_user_attr("points", [[astuple(point) for point in row] for row in tried.points])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an outage of the storage may make us say it twice
            trial.set_constraint("overload", tried.overload)
            trial.set_constraint("missed", tried.missed)
            if self._single:
                for seed, value in enumerate(logs[0]):
                    trial.report(float(value), seed)
        if len(tried.points) < self._cases.replications:
            self._study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        else:
            self._study.tell(trial, [float(one.mean()) for one in logs], skip_if_finished=True)

    def _trials(self, below: int | None = None) -> Trials:
        """What is finished, of all trials or of those of a number below ``below``."""
        all_trials = self._patience(lambda: self._study.get_trials(deepcopy=False))[:below]
        return Trials(
            measured=tuple(_tried(one) for one in all_trials if one.state == TrialState.COMPLETE),
            pruned=tuple(_tried(one) for one in all_trials if one.state == TrialState.PRUNED),
            refused=sum("refused" in one.user_attrs for one in all_trials),
        )

    def _narrow(self, trials: Trials) -> bool:
        """Whether enough is known of the best: it is older than a batch, and its interval is narrow."""
        if self._rules.width is None or not self._single or len(trials.measured) < 2 * TOGETHER:
            return False
        base, objective = self._references[0], self._rules.objectives[0]
        tried = tuple({one.policy: one for one in (*self._references, *trials.measured)}.values())
        best = lowest(tried, base, objective)
        next_best = lowest([one for one in tried if one is not best], base, objective)
        if best is None or next_best is None:
            return False
        older = {one.policy for one in (*self._references, *trials.measured[:-TOGETHER])}
        return best.policy in older and ratio(best, next_best, objective).width < self._rules.width

    def _progress(self) -> None:
        trials, told = self._trials(), "trials"
        base, objective = self._references[0], self._rules.objectives[0]
        best = lowest((*self._references, *trials.measured), base, objective)
        if best is not None:
            told += f", best {objective} {ratio(best, base, objective).mean:.3f} of the greedy table's"
        self._tell(told, trials.done, self._rules.trials)


def measure(
    cases: Cases,
    workers: Workers[Task, Point],
    policies: Sequence[str],
    seeds: Sequence[int],
    done: Callable[[], None] = lambda: None,
) -> list[Tried]:
    """Run policies on some seeds of every case."""
    tasks = [task for policy in policies for task in cases.tasks(policy, seeds)]
    points = iter(workers.map(tasks, done))
    return [
        Tried(policy, tuple(tuple(next(points) for _ in cases.all) for _ in seeds)) for policy in policies
    ]


def _surplus(trial: FrozenTrial) -> bool:
    """Asked for when others had asked for the last ones already."""
    return trial.state == TrialState.FAIL and "refused" not in trial.user_attrs


def _tried(trial: FrozenTrial) -> Tried:
    rows = trial.user_attrs["points"]
    return Tried(trial.user_attrs["policy"], tuple(tuple(Point(*values) for values in row) for row in rows))
