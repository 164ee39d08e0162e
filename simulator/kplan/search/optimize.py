"""``kplan search``: the best policy of one or several families over every load and workload asked for."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna

from kplan.config.scenario import Scenario
from kplan.errors import InputError
from kplan.provenance import digest, file_digest, versions
from kplan.registry import parse_policy
from kplan.search.cases import Cases, Point, Task, greedy_spec, make_cases
from kplan.search.evaluate import check_room, why_not_runnable
from kplan.search.executor import Workers, open_workers
from kplan.search.families import Family, Space, read_family
from kplan.search.samplers import check_sampler
from kplan.search.score import FIGURES, Tried, careful, front, lowest
from kplan.search.storage import Patience, check_identity, opened, shown
from kplan.search.study import Rules, Searching, Trials, measure
from kplan.simulate import Setup
from kplan.space import Limits
from kplan.telling import Tell, counted, silent

FOLDER = Path("runs") / "search"
"""Where journal files go that nobody names."""


@dataclass(frozen=True)
class Asked:
    """What to search, and by which means.

    Attributes:
        families: policy classes, as ``--policy`` names them.
        objectives: one or two of kplan.search.score.FIGURES; two give a Pareto front.
        loads: requests/s (or clients) in place of the scenario's own.
        workloads: in place of the scenario's own.
        trials: how many the study shall have, over all coordinators and runs.
        width: stop early when the paired interval of the best against the next best is narrower.
        sampler: tpe, nsga2, gp or cmaes; None: tpe for one objective, nsga2 for two.
        storage: a journal file or ``postgresql://...``; None: memory.
        study: its name there; None: one made of what is searched.
        workers: processes of this machine; not used with a ``cluster``, the address of a Dask scheduler.
    """

    families: tuple[str, ...] = ("table",)
    objectives: tuple[str, ...] = ("tpot",)
    loads: tuple[float, ...] = ()
    workloads: tuple[str, ...] = ()
    trials: int = 100
    width: float | None = None
    sampler: str | None = None
    storage: str | None = None
    study: str | None = None
    workers: int = 1
    cluster: str | None = None

    def check(self) -> None:
        """Refuse what is no search.

        Raises:
            InputError: see there.
        """
        for name in self.objectives:
            if name not in FIGURES:
                raise InputError("--objective", name, "is not known", f"choose from {', '.join(FIGURES)}")
        if not 1 <= len(set(self.objectives)) == len(self.objectives) <= 2:
            raise InputError("--objective", ", ".join(self.objectives), "must be one, or two that differ")
        if set(self.objectives) == {"throughput", "cost"}:
            raise InputError(
                "--objective", "throughput, cost", "are one thing on a given number of GPUs", "leave one out"
            )
        if self.trials < 1:
            raise InputError("trials", self.trials, "must be at least 1")
        if self.width is not None and not self.width > 0:
            raise InputError("--width", self.width, "must be above 0", "0.01 is one percent")
        check_sampler(self.chosen_sampler, len(self.objectives), len(self.families))

    def stored(self, storage: str) -> Asked:
        """The same with its study kept at ``storage``."""
        return replace(self, storage=storage)

    @property
    def chosen_sampler(self) -> str:
        """The sampler, where none is asked for the one that fits."""
        return self.sampler or ("tpe" if len(self.objectives) == 1 else "nsga2")


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        greedy, references, oracle: the greedy table, no speculation and every fixed K, and the bound, on the
            held-out replications (see kplan.search.cases).
        finalists: the best of the trials, measured there too: what is reported and chosen rests on requests
            that no trial was picked by.
        trials: on the replications of the search.
        importances: share of the first objective's spread by parameter; empty with too few trials.
        storage, study: where the study is.
    """

    scenario: Scenario
    asked: Asked
    cases: Cases
    greedy: Tried
    references: tuple[Tried, ...]
    oracle: Tried
    finalists: tuple[Tried, ...]
    trials: Trials
    importances: dict[str, float]
    storage: str | None
    study: str
    identity: dict[str, Any]
    wall_s: float

    @property
    def all(self) -> tuple[Tried, ...]:
        """Every policy that may be chosen, once, on the held-out replications."""
        tried = (self.greedy, *self.references, *self.finalists)
        return tuple({one.policy: one for one in tried}.values())


def optimize(
    scenario: Scenario,
    asked: Asked,
    tell: Tell = silent,
    warn: Callable[[str], None] = lambda _: None,
) -> Found:
    """Search the families for the best policy over all cases.

    The same arguments give the same trials and the same best, whatever the workers. A script that calls this
    needs the usual ``if __name__ == "__main__":``, for local workers import it.

    Args:
        tell: told how far it is; warn: told of outages.

    Raises:
        InputError: something asked for that is not there or does not fit, see :meth:`Asked.check`,
            kplan.search.cases, families, storage and executor; a study that searches something else.
    """
    start_s = time.perf_counter()
    asked.check()
    tell("loading profiles, pricing steps and drawing requests")
    cases, limits = make_cases(scenario, asked.loads, asked.workloads, tell)
    space = Space([_family(one, limits, cases.first) for one in dict.fromkeys(asked.families)])
    identity, name = _identity(scenario, asked), study_name(scenario, asked)
    storage = None if asked.storage is None else shown(asked.storage)
    rules = Rules(asked.objectives, asked.trials, asked.chosen_sampler, scenario.seed, asked.width)
    patience = Patience(warn, str(storage))
    with opened(asked.storage) as where, open_workers(cases, asked.workers, asked.cluster) as workers:
        study = _open_study(where, name, len(asked.objectives))
        check_identity(study, identity)
        oracle, *texts = _reference_texts(cases, limits)
        references = _told(
            tell, "the greedy table, no speculation and every fixed K", cases, workers, texts, cases.searched
        )
        searching = Searching(study, cases, workers, space, rules, references, patience, tell)
        trials = searching.run()
        importances = patience(lambda: _importances(study))
        best = finalists(cases.first, (*references, *trials.measured), asked.objectives)
        last = list(dict.fromkeys([oracle, *texts, *best]))
        held_out = _told(
            tell, "the best, those and the oracle on requests that no trial has seen", cases, workers, last,
            cases.held_out,
        )  # fmt: skip
    return Found(
        scenario=scenario,
        asked=asked,
        cases=cases,
        greedy=held_out[1],
        references=tuple(held_out[2 : 1 + len(texts)]),
        oracle=held_out[0],
        finalists=tuple(held_out[1 + len(texts) :]),
        trials=trials,
        importances=importances,
        storage=storage,
        study=name,
        identity=identity,
        wall_s=time.perf_counter() - start_s,
    )


def _told(
    tell: Tell,
    what: str,
    cases: Cases,
    workers: Workers[Task, Point],
    policies: list[str],
    seeds: Sequence[int],
) -> list[Tried]:
    """:func:`measure`, telling how many runs are done."""
    runs = len(policies) * len(seeds) * len(cases.all)
    return measure(cases, workers, policies, seeds, counted(tell, f"measuring {what}", runs))


def study_name(scenario: Scenario, asked: Asked) -> str:
    """The name asked for, or one made of what is searched: the same search has the same."""
    return asked.study or f"search-{digest(_identity(scenario, asked))}"


def _family(text: str, limits: Limits, setup: Setup) -> Family:
    """The family, which the server can run. Raises InputError."""
    family = read_family(text, limits)
    if family.combines and setup.mix is None:
        raise InputError(
            "--family", text, f"chooses among proposers, and {setup.scenario.proposer} is one",
            "join several: --proposer ngram+eagle3",
        )  # fmt: skip
    return family


def _reference_texts(cases: Cases, limits: Limits) -> list[str]:
    """The oracle, the greedy table, off and every fixed K; of several proposers, all but the oracle draft
    with the last."""
    oracle = "oracle" if cases.first.mix is None else "combined-oracle"
    specs = [parse_policy(oracle), greedy_spec(limits), parse_policy("off")]
    specs += [parse_policy(f"fixed:{k}") for k in range(1, limits.max_k + 1)]
    for case in cases.all:
        check_room(case.setup, specs)
    return list(dict.fromkeys(spec.text for spec in specs))


def finalists(setup: Setup, tried: Sequence[Tried], objectives: Sequence[str]) -> list[str]:
    """The policies that may be the best by what was measured: of all and of those that the engine runs the
    lowest and the careful choice, and the front of two objectives.

    Args:
        tried: the greedy table first.
    """
    base, objective = tried[0], objectives[0]
    able = [one for one in tried if not why_not_runnable(setup, parse_policy(one.policy))]
    picks = [choose(group, base, objective) for group in (tried, able) for choose in (lowest, careful)]
    line = front(tried, base, objectives) if len(objectives) > 1 else []
    return list(dict.fromkeys(one.policy for one in (*picks, *line) if one is not None))


def _open_study(where: optuna.storages.BaseStorage, name: str, objectives: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        storage=where, study_name=name, load_if_exists=True, directions=["minimize"] * objectives
    )


def _identity(scenario: Scenario, asked: Asked) -> dict[str, Any]:
    """What makes a search another one: what is searched and on what, not by which means."""
    files = [scenario.replay, scenario.traces]
    files += [Path(str(one)) for one in (scenario.model, scenario.hardware, scenario.calibration)]
    files += [Path(str(one)) for one in (scenario.drafter, *(asked.workloads or (scenario.workload,)))]
    files += [Path(one.rpartition(":")[0]) for one in asked.families]
    read = sorted({file_digest(one) for one in files if one is not None and one.is_file()})
    kept = scenario.model_dump(mode="json", exclude={"policy", "workload", "replay", "traces"})
    return {
        "scenario": digest({"scenario": kept, "files": read}),
        "loads": [f"{one:g}" for one in asked.loads],
        "workloads": list(asked.workloads or (scenario.workload,)),
        "families": list(dict.fromkeys(asked.families)),
        "objectives": list(asked.objectives),
        "versions": versions() | {"optuna": optuna.__version__},
    }


def _importances(study: optuna.Study) -> dict[str, float]:
    """Of the first objective's value, by PED-ANOVA; empty where too few trials differ."""
    trials = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len({trial.values[0] for trial in trials}) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it reminds of the direction, which is ours
        return optuna.importance.get_param_importances(
            study,
            evaluator=optuna.importance.PedAnovaImportanceEvaluator(),
            target=lambda trial: trial.values[0],
        )
