"""Several proposers on the same requests: their own trace models, generated at the same positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.model import TraceModel
from kplan.acceptance.trace import ProposerTrace
from kplan.errors import InputError


def proposers_of(name: str) -> tuple[str, ...]:
    """The proposers that a name joins with ``+``, in its order: ``ngram+eagle3`` is two.

    Raises:
        InputError: a part is empty or stands there twice.
    """
    parts = tuple(name.split("+"))
    if "" in parts or len(set(parts)) < len(parts):
        raise InputError(
            "--proposer", name, "different names joined by + are needed", "for example ngram+eagle3"
        )
    return parts


@dataclass(frozen=True)
class JointModel:
    """Trace models of one or several proposers on the same requests.

    Attributes:
        models: proposer -> its own model, which holds alone as it does here.
    """

    models: Mapping[str, TraceModel]

    def generate(
        self, seed: int, output_len: NDArray[np.integer[Any]], request0: int = 0
    ) -> dict[str, ProposerTrace]:
        """The trace of every proposer; all rows are aligned. See :meth:`TraceModel.generate`."""
        return {name: model.generate(seed, output_len, request0) for name, model in self.models.items()}
