"""Arrivals and lengths: rates, correlations, and requests that do not depend on how many there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest, spearmanr

from kplan.errors import InputError
from kplan.provenance import Kind, Provenance
from kplan.workload import constant, fit_lengths, gamma, poisson, ramp, think_times

MADE = Provenance(Kind.ASSUMED, "made for a test")


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(poisson(64.0, 20_000, seed=3))
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(1 / 64, rel=0.03)
    assert kstest(gaps * 64, "expon").pvalue > 0.001


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_gamma_gaps_have_the_burstiness_asked_for(burstiness: float) -> None:
    gaps = np.diff(gamma(10.0, 60_000, 1, burstiness))
    assert gaps.mean() == pytest.approx(0.1, rel=0.03)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / burstiness, rel=0.06)


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(0, 2**32), st.floats(0.01, 1000))
def test_the_first_arrivals_do_not_depend_on_how_many_follow(n: int, seed: int, rate: float) -> None:
    np.testing.assert_array_equal(poisson(rate, n, seed), poisson(rate, n + 20, seed)[:n])
    np.testing.assert_allclose(poisson(rate, n, seed), poisson(1.0, n, seed) / rate, rtol=1e-12)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_rates_are_refused(rate: float) -> None:
    with pytest.raises(InputError, match="rate"):
        poisson(rate, 5, 0)


def test_no_requests_are_refused() -> None:
    for none in (
        lambda: poisson(1.0, 0, 0),
        lambda: constant(1.0, 0),
        lambda: ramp(1.0, 2.0, 0, 0),
        lambda: think_times(1.0, 0, 0),
    ):
        with pytest.raises(InputError, match="requests"):
            none()


def test_constant_arrivals_keep_one_gap() -> None:
    np.testing.assert_allclose(constant(4.0, 5), [0.25, 0.5, 0.75, 1.0, 1.25], rtol=1e-15)


@pytest.mark.parametrize(("first", "last", "in_first_half"), [(2.0, 6.0, 15_000), (6.0, 2.0, 25_000)])
def test_a_ramp_brings_the_area_under_its_rate(first: float, last: float, in_first_half: int) -> None:
    """40,000 requests at a mean rate of 4 take 10,000 s; the mean rate of the first half is 3 (or 5)."""
    t = ramp(first, last, 40_000, seed=5)
    assert (np.diff(t) > 0).all()
    assert np.count_nonzero(t < 5000) == pytest.approx(in_first_half, abs=4 * in_first_half**0.5)
    edges = np.linspace(0, 10_000, 21)
    middle_rate = first + (last - first) * (edges[1:] + edges[:-1]) / 2 / 10_000
    seen = np.histogram(t[t < 9500], edges[:-1])[0]
    expected = middle_rate[:-1] * 500
    assert chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 0.001
    assert t[-1] == pytest.approx(10_000, abs=4 * 40_000**0.5 / last)


@settings(deadline=None)
@given(
    st.floats(0.1, 50), st.floats(0.1, 50), st.integers(1, 200), st.integers(0, 2**32), st.floats(0.1, 100)
)
def test_ramps_scale_and_a_flat_one_is_poisson(a: float, b: float, n: int, seed: int, by: float) -> None:
    t = ramp(a, b, n, seed)
    assert (np.diff(t) >= 0).all()
    assert t[0] > 0
    np.testing.assert_allclose(ramp(a * by, b * by, n, seed), t / by, rtol=1e-9)
    np.testing.assert_allclose(ramp(a, a, n, seed), poisson(a, n, seed), rtol=1e-9)


@pytest.mark.parametrize("rates", [(0.0, 1.0), (1.0, -1.0), (1.0, float("inf"))])
def test_bad_ramps_are_refused(rates: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="rate"):
        ramp(*rates, 5, 0)


def test_think_times_are_exponential_and_keyed_by_request() -> None:
    pauses = think_times(2.5, 20_000, seed=3)
    assert kstest(pauses / 2.5, "expon").pvalue > 0.001
    np.testing.assert_array_equal(think_times(2.5, 7, 3), pauses[:7])
    assert not np.isclose(pauses[:50], 2.5 * np.diff(poisson(1.0, 51, 3))).any(), "a stream of their own"
    assert (think_times(0.0, 9, 3) == 0).all()


@pytest.mark.parametrize("mean", [-1.0, float("nan"), float("inf")])
def test_bad_think_times_are_refused(mean: float) -> None:
    with pytest.raises(InputError, match="think time"):
        think_times(mean, 5, 0)


def heavy_tailed(n: int, rho: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    a = rng.standard_normal(n)
    b = rho * a + np.sqrt(1 - rho**2) * rng.standard_normal(n)
    return np.ceil(np.exp(5 + 1.2 * a)).astype(np.int32), np.ceil(np.exp(4 + b)).astype(np.int32)


@pytest.mark.parametrize("rho", [-0.6, 0.0, 0.5])
def test_fitted_lengths_keep_quantiles_tail_and_correlation(rho: float) -> None:
    prompt, output = heavy_tailed(4000, rho)
    sampled_prompt, sampled_output = fit_lengths(prompt, output, MADE).sample(1, 20_000)
    at = (0.05, 0.25, 0.5, 0.75, 0.95)
    np.testing.assert_allclose(np.quantile(sampled_prompt, at), np.quantile(prompt, at), rtol=0.1)
    np.testing.assert_allclose(np.quantile(sampled_output, at), np.quantile(output, at), rtol=0.1)
    assert sampled_prompt.mean() == pytest.approx(prompt.mean(), rel=0.1)
    found = spearmanr(sampled_prompt, sampled_output).statistic
    assert found == pytest.approx(spearmanr(prompt, output).statistic, abs=0.03)
    assert sampled_prompt.max() <= prompt.max()


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(0, 2**32))
def test_lengths_of_a_request_do_not_depend_on_how_many_follow(n: int, seed: int) -> None:
    lengths = fit_lengths(*heavy_tailed(100, 0.3), MADE)
    few, many = lengths.sample(seed, n), lengths.sample(seed, n + 13)
    np.testing.assert_array_equal(few[0], many[0][:n])
    np.testing.assert_array_equal(few[1], many[1][:n])


def test_constant_lengths_fit() -> None:
    prompt, output = fit_lengths(np.full(30, 9, np.int32), np.full(30, 4, np.int32), MADE).sample(0, 5)
    assert prompt.tolist() == [9] * 5
    assert output.tolist() == [4] * 5


def test_too_few_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="at least 20"):
        fit_lengths(np.ones(19, np.int32), np.ones(19, np.int32), MADE)
