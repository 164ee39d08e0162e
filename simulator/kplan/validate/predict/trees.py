"""Draft trees beside a chain, at acceptance lengths that were published with the speedups.

Rows at ``batch``, ``proposer``, ``depth``, ``topk`` (1: a chain), ``k`` (drafted nodes that the target
verifies) and ``emitted`` (tokens per step, bonus included, published at batch 1).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kplan.profiles import Drafter, load_drafter
from kplan.profiles.drafter import Tree
from kplan.validate.predict.bench import prediction
from kplan.validate.predict.steady import Stand
from kplan.validate.table import Prediction, PublishedTable


def predict(table: PublishedTable) -> list[Prediction]:
    """Speedup of output tokens per second, one row after the other.

    Raises:
        InputError: a setting or a proposer that no profile knows.
    """
    stand = Stand(table)
    done = []
    for row in table.rows:
        chain = load_drafter(str(row.at["proposer"]), stand.model)
        k = int(row.at["k"])
        drafter = tree_of(chain, int(row.at["depth"]), int(row.at["topk"]), k)
        crowd = stand.crowd(int(row.at["batch"]))
        speedups = stand.speedups(drafter, crowd, k)
        done.append(prediction(np.array([each(float(row.at["emitted"])) for each in speedups])))
    return done


def tree_of(chain: Drafter, depth: int, topk: int, verified: int) -> Drafter:
    """The same head drafting ``depth`` levels of ``topk`` tokens; ``topk`` 1 leaves it a chain."""
    return chain if topk == 1 else replace(chain, tree=Tree(depth, topk, verified))
