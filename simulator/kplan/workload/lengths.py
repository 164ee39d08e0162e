"""Joint model of prompt and output length: quantile tables tied by a rank correlation (Gaussian copula)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from kplan.errors import InputError
from kplan.provenance import Provenance
from kplan.rng import stream

PROBABILITIES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True)
class Lengths:
    """Prompt and output length in tokens.

    Attributes:
        probabilities: (q,) increasing, 0 to 1.
        prompt_tokens, output_tokens: (q,) quantiles, >= 1, non-decreasing; interpolated in the logarithm.
        rank_correlation: Spearman's, of prompt and output length.
        provenance: fitted on what, or assumed why.
    """

    probabilities: NDArray[np.float64]
    prompt_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    rank_correlation: float
    provenance: Provenance

    def sample(self, seed: int, n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(n,) prompt and (n,) output lengths; request i's are the same for every n > i under one ``seed``.

        Raises:
            InputError: n < 1.
        """
        if n < 1:
            raise InputError("requests", n, "at least 1 is needed")
        normal = stream(seed, "lengths").standard_normal((n, 2))
        # Pearson's correlation of the normals that gives this rank correlation (Kruskal 1958).
        rho = 2.0 * np.sin(np.pi / 6.0 * self.rank_correlation)
        second = rho * normal[:, 0] + np.sqrt(1.0 - rho * rho) * normal[:, 1]
        return self._at(normal[:, 0], self.prompt_tokens), self._at(second, self.output_tokens)

    def _at(self, normal: NDArray[np.float64], quantiles: NDArray[np.float64]) -> NDArray[np.int32]:
        logs = np.interp(ndtr(normal), self.probabilities, np.log(quantiles))
        return np.asarray(np.maximum(np.rint(np.exp(logs)), 1), np.int32)


def fit_lengths(
    prompt_len: NDArray[np.int32], output_len: NDArray[np.int32], provenance: Provenance
) -> Lengths:
    """Fit the quantile tables and the rank correlation on (n,) prompt and output lengths.

    Raises:
        InputError: fewer than 20 requests.
    """
    from scipy.stats import spearmanr  # half a second to import, needed by fits alone

    if len(prompt_len) < 20:
        raise InputError("requests", len(prompt_len), "at least 20 are needed to fit lengths")
    probabilities = np.array(PROBABILITIES)
    constant = np.ptp(prompt_len) == 0 or np.ptp(output_len) == 0
    return Lengths(
        probabilities=probabilities,
        prompt_tokens=np.quantile(prompt_len, probabilities),
        output_tokens=np.quantile(output_len, probabilities),
        rank_correlation=0.0 if constant else float(spearmanr(prompt_len, output_len).statistic),
        provenance=provenance,
    )
