"""Optuna's samplers by name."""

from __future__ import annotations

import importlib.util
import warnings

import optuna

from kplan.errors import InputError
from kplan.rng import stream

NEEDS = {"tpe": None, "nsga2": None, "gp": "torch", "cmaes": "cmaes"}
"""Sampler -> the package that it needs beside Optuna."""
POPULATION = 24
"""Of NSGA-II: a few generations in a hundred trials."""


def check_sampler(name: str, objectives: int, families: int) -> None:
    """Refuse a sampler that cannot do what is asked.

    Raises:
        InputError: unknown; its package is not installed; of one objective or one family.
    """
    if name not in NEEDS:
        raise InputError("--sampler", name, "is not known", f"choose from {', '.join(NEEDS)}")
    package = NEEDS[name]
    if package is not None and importlib.util.find_spec(package) is None:
        raise InputError(
            "--sampler",
            name,
            f"needs the package {package}, which is not installed",
            f"pip install {package}",
        )
    if name == "cmaes" and (objectives > 1 or families > 1):
        raise InputError("--sampler", name, "takes one objective and one family", "use tpe or nsga2")
    if name == "gp" and families > 1:
        raise InputError("--sampler", name, "takes one family", "use tpe or nsga2")


def make_sampler(name: str, seed: int, *place: int | str) -> optuna.samplers.BaseSampler:
    """The sampler of one trial, or of one of its parameters.

    Args:
        place: number of the trial, and the parameter's name; with the seed, what its chance depends on.
    """
    own = int(stream(seed, "search", *place).integers(2**32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match name:
            case "tpe":
                return optuna.samplers.TPESampler(seed=own)
            case "nsga2":
                return optuna.samplers.NSGAIISampler(seed=own, population_size=POPULATION)
            case "gp":
                return optuna.samplers.GPSampler(seed=own, deterministic_objective=True)
            case _:
                return optuna.samplers.CmaEsSampler(seed=own)
