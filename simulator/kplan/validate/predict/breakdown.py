"""Single steps: how long one takes, and how its time divides into stages."""

from __future__ import annotations

import numpy as np

from kplan.errors import InputError
from kplan.profiles import Drafter, load_drafter
from kplan.validate.predict.bench import Floats, prediction
from kplan.validate.predict.steady import Stand, parts, steady
from kplan.validate.table import Prediction, PublishedTable

STAGES = ("verification", "drafting", "sampling", "overhead")
"""Names of the parts of a step, in the order of :func:`kplan.validate.predict.steady.parts`."""
OFF = "off"
"""What a table writes for no speculation where others have a proposer."""


def shares(table: PublishedTable) -> list[Prediction]:
    """Share of the time of all steps: rows at ``proposer``, ``k``, ``batch``, ``emitted`` and ``stage``.

    A lookup verifies as many drafts as it is asked for, which is the most it can.

    Raises:
        InputError: an unknown stage or setting, or a name without a profile.
    """
    stand = Stand(table)
    done = []
    for row in table.rows:
        stage = str(row.at["stage"])
        if stage not in STAGES:
            raise InputError(f"table {table.name}: stage", stage, f"known: {', '.join(STAGES)}")
        drafter, k = _drafter(stand, row.at["proposer"]), int(row.at["k"])
        crowd = stand.crowd(int(row.at["batch"]))
        steps = [
            steady(each, crowd, k, float(row.at["emitted"])).step for each in stand.latencies(drafter, k)
        ]
        at = STAGES.index(stage)
        done.append(prediction(np.array([float(parts(step)[at] / step.total_s) for step in steps])))
    return done


def step_ms(table: PublishedTable) -> list[Prediction]:
    """Time of a step of decodes alone: rows at ``proposer``, ``k`` (0: speculation off) and ``batch``.

    Raises:
        InputError: an unknown setting, or a name without a profile.
    """
    stand = Stand(table)
    return [
        prediction(_decode_ms(stand, row.at["proposer"], int(row.at["k"]), int(row.at["batch"])))
        for row in table.rows
    ]


def _decode_ms(stand: Stand, proposer: object, k: int, batch: int) -> Floats:
    drafter = _drafter(stand, proposer) if k else None
    shape = stand.crowd(batch).decode(k)
    return np.array([float(each.step_seconds(shape).total_s) * 1e3 for each in stand.latencies(drafter, k)])


def _drafter(stand: Stand, proposer: object) -> Drafter | None:
    return None if proposer == OFF else load_drafter(str(proposer), stand.model)
