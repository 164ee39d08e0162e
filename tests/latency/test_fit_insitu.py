"""The in-situ fit on a made predictor, linear in the figures: what is identified, held and given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency import fit_insitu
from kplan.latency.fit_figures import figures_of
from kplan.latency.fit_insitu import Array, InSituFit, fit_in_situ
from kplan.latency.observed import Observation, Served, shape_row
from kplan.profiles import Calibration, load_calibration, load_engine, load_hardware, load_model
from kplan.provenance import Kind

BASE = load_calibration("h100-sxm")
FIGURES = figures_of(BASE)
SERVED = Served(load_hardware("h100-sxm"), load_model("llama-3.1-8b"), load_engine("vllm"))
STEP, BANDWIDTH, FLOPS = "host.step_s", "gemm.bandwidth_eff", "gemm.flops_eff"
REQUEST, EXPOSED = "host.request_s", "host.exposed_s"

Law = Callable[[dict[str, float]], Array]
"""(n,) seconds of the rows from figures by their paths, each as a factor on the base's."""


def rows(
    seconds: Sequence[float], *, k: int = 0, proposer: str | None = None, repeated: int = 1
) -> list[Observation]:
    """Rows of settings that double from one request on, every one measured ``repeated`` times."""
    found = []
    for number, each in enumerate(seconds):
        requests = 2**number
        shape = shape_row(
            decode_requests=requests, decode_tokens=requests * (k + 1), decode_kv_tokens=requests * 100
        )
        row = Observation("made.csv, blake2b 0", "", proposer, k, each, np.array([shape]), np.ones(1))
        found += [row] * repeated
    return found


def fit(
    monkeypatch: pytest.MonkeyPatch,
    law: Law,
    measured: list[Observation],
    *free: str,
    repeated: int = 1,
    partial: bool = True,
    base: Calibration = BASE,
) -> InSituFit:
    """A fit in which ``law`` predicts and only figures in ``free`` may move."""

    class Made:
        def __init__(self, *_: object) -> None: ...

        def seconds(self, calibration: Calibration) -> Array:
            figures = figures_of(calibration)
            factors = {path: figures[path].value / FIGURES[path].value for path in FIGURES.keys() & figures}
            return np.repeat(law(factors), repeated)

    monkeypatch.setattr(fit_insitu, "Predictor", Made)
    held = frozenset(FIGURES) - set(free)
    return fit_in_situ(SERVED, base, measured, held, partial=partial)


def level(path: str, count: int = 7) -> Law:
    """All steps take a second per unit of one figure's factor."""
    return lambda factors: np.full(count, factors[path])


LEVELS = [1.0] * 4 + [float(np.exp(0.05 * 25 / 12))] * 3


def test_a_factor_and_its_error_are_huber_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Residuals s tan a (4 rows) and s tan b (3), s = 0.05, balance where 4 sin a = 3 sin b: 3/4 and 4/3.

    Their loss has slopes s sin and curvatures cos^3; seven settings leave six degrees of freedom.
    """
    found = fit(monkeypatch, level(STEP), rows(LEVELS), STEP)
    factor = np.exp(0.05 * 3 / 4)
    figure = found.calibration.host.step_s
    assert figure.value == pytest.approx(FIGURES[STEP].value * factor, rel=1e-4)
    squares = 0.05**2 * (4 * 0.6**2 + 3 * 0.8**2)
    curvature = (4 * 0.8**3 + 3 * 0.6**3) / 7
    error = np.sqrt(squares / 6 / curvature**2 / 7)
    assert figure.stderr == pytest.approx(figure.value * error, rel=1e-3)
    assert (found.paths, found.names) == ({STEP}, ("host per step",))
    assert found.predicted == pytest.approx(np.full(7, factor), rel=1e-4)
    miss = (4 * (factor - 1) + 3 * (1 - np.exp(-0.05 * 4 / 3))) / 7
    note = f"host per step, 7 measured rows, mean error {miss:.1%}"
    assert (figure.provenance.kind, figure.provenance.note) == (Kind.FITTED, note)
    assert figure.provenance.source == "made.csv, blake2b 0"


def test_repeated_rows_have_the_freedom_of_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their residuals add up fourfold and so does what they tell: as many settings, the same error."""
    once = fit(monkeypatch, level(STEP), rows(LEVELS), STEP).calibration.host.step_s
    often = fit(monkeypatch, level(STEP), rows(LEVELS, repeated=4), STEP, repeated=4).calibration.host.step_s
    assert once.stderr is not None
    assert often.value == pytest.approx(once.value, rel=1e-4)
    assert often.stderr == pytest.approx(once.stderr, rel=1e-3)


def test_several_figures_come_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = 2.0 ** np.arange(6)

    def law(factors: dict[str, float]) -> Array:
        return np.asarray(1.0 / factors[BANDWIDTH] + factors[STEP] / sizes + 0.1 * sizes * factors[REQUEST])

    true = {BANDWIDTH: 0.8, STEP: 1.5, REQUEST: 0.7}
    found = fit(monkeypatch, law, rows(list(law(true))), *true)
    figures = figures_of(found.calibration)
    assert found.paths == true.keys()
    for path, factor in true.items():
        assert figures[path].value == pytest.approx(FIGURES[path].value * factor, rel=1e-3)
        assert figures[path].stderr == pytest.approx(0.0, abs=1e-3 * figures[path].value)
    assert all(
        figures[path] == FIGURES[path] for path in FIGURES.keys() - true.keys() if "alternate" not in path
    )
    assert found.calibration.gemm_alternate is None
    assert found.calibration.host_alternate is None


@pytest.mark.parametrize("repeated", [1, 3])
@pytest.mark.parametrize(("shown", "told"), [(0.98, False), (1.02, True)])
def test_a_host_time_is_told_by_how_far_its_whole_width_moves_the_rows(
    monkeypatch: pytest.MonkeyPatch, shown: float, told: bool, repeated: int
) -> None:
    """Four settings with noise of 3% leave 0.35 of it where each moves by c: 4 c^2 / 0.03^2 + 1 = 0.35^-2."""
    moved = shown * np.sqrt((0.35**-2 - 1) * 0.03**2 / 4)
    share = (np.exp(moved) - 1) / 4  # of the step: five times as long, it moves the step by so much

    def law(factors: dict[str, float]) -> Array:
        return np.full(4, 1 - share + share * factors[STEP])

    measured = rows([float(law({STEP: 1.0})[0])] * 4, repeated=repeated)
    if told:
        assert fit(monkeypatch, law, measured, STEP, repeated=repeated).names == ("host per step",)
    else:
        with pytest.raises(InputError, match="no row shows the host's time per step"):
            fit(monkeypatch, law, measured, STEP, repeated=repeated)


@pytest.mark.parametrize(("shown", "told"), [(0.98, False), (1.02, True)])
def test_an_efficiency_is_told_by_its_slope(
    monkeypatch: pytest.MonkeyPatch, shown: float, told: bool
) -> None:
    """As above, the change being the slope of the log times a width of 1 (a factor of e)."""
    share = shown * np.sqrt((0.35**-2 - 1) * 0.03**2 / 4)

    def law(factors: dict[str, float]) -> Array:
        return np.full(4, factors[FLOPS] ** -share)

    measured = rows([1.0] * 4)
    if told:
        assert fit(monkeypatch, law, measured, FLOPS).names == ("compute rate",)
    else:
        with pytest.raises(InputError, match="compute-bound slope is not identified"):
            fit(monkeypatch, law, measured, FLOPS)


def test_fewer_figures_than_settings_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three settings that three figures would fit exactly: the two that they show best are fitted."""
    weights = np.array([[1.0, 0.1, 0.1], [0.1, 1.0, 0.1], [0.1, 0.1, 0.5]])

    def law(factors: dict[str, float]) -> Array:
        return np.asarray(weights @ [factors[STEP], factors[REQUEST], factors[EXPOSED]])

    true = {STEP: 2.0, REQUEST: 3.0, EXPOSED: 1.0}
    found = fit(monkeypatch, law, rows(list(law(true))), *true)
    assert found.paths == {STEP, REQUEST}
    assert "the gap between steps is too small to be seen" in found.notes


@pytest.mark.parametrize(
    ("path", "factor", "held_at"),
    [
        (STEP, 80.0, FIGURES[STEP].value * 50),
        (STEP, 1 / 80, FIGURES[STEP].value / 50),
        (FLOPS, 2.0, 1.0),
        (FLOPS, 0.02, 0.02),
    ],
)
def test_a_figure_beyond_its_bounds_is_held_there(
    monkeypatch: pytest.MonkeyPatch, path: str, factor: float, held_at: float
) -> None:
    """A time 50 times longer or shorter than the base's, an efficiency from 2% to all."""
    found = fit(monkeypatch, level(path, 4), rows([factor] * 4), path)
    figure = figures_of(found.calibration)[path]
    assert figure.value == pytest.approx(held_at, rel=1e-5)
    assert figure.stderr is None
    assert figure.provenance.note.endswith("; at its bound, so without a standard error")


def test_what_is_held_at_a_bound_leaves_the_others_to_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = 2.0 ** np.arange(5)

    def law(factors: dict[str, float]) -> Array:
        return np.asarray(sizes / factors[FLOPS] + factors[STEP])

    most = 1 / FIGURES[FLOPS].value
    measured = rows([float(size / most + 5.0) for size in sizes])
    found = fit(monkeypatch, law, measured, FLOPS, STEP)
    assert found.calibration.gemm.flops_eff.value == pytest.approx(1.0, rel=1e-5)
    assert found.calibration.host.step_s.value == pytest.approx(5 * FIGURES[STEP].value, rel=1e-3)


def test_a_figure_that_no_two_rows_agree_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows a factor of e above and below: where they balance the loss is flat, its error without end."""
    scattered = [float(np.exp(sign)) for sign in (1, -1, 1, -1)]
    with pytest.raises(InputError, match="host's time per step: it hides behind the GPU; add such rows"):
        fit(monkeypatch, level(STEP, 4), rows(scattered), STEP)


@pytest.mark.parametrize(("shown", "told"), [(0.98, False), (1.02, True)])
def test_a_figure_whose_error_exceeds_its_bound_is_given_up(
    monkeypatch: pytest.MonkeyPatch, shown: float, told: bool
) -> None:
    """Four rows lie a factor of e from their level (tan a = 20), four on theirs, the step a share of it.

    Eight settings and two figures: scatter = sum s^2 sin^2 / 6 / (mean cos^3)^2, and its share of 0.35 is
    the error of a figure whose four rows have that slope.
    """
    scatter = 4 * 0.05**2 * 400 / 401 / 6 / ((1 + 401**-1.5) / 2) ** 2
    share = shown * np.sqrt(scatter / 4) / 0.35

    def law(factors: dict[str, float]) -> Array:
        step = 1 - share + share * factors[STEP]
        return np.concatenate([np.full(4, step), np.full(4, factors[REQUEST])])

    scattered = [2 * float(np.exp(sign)) for sign in (1, -1, 1, -1)]
    found = fit(monkeypatch, law, rows([1.0] * 4 + scattered), STEP, REQUEST)
    assert (STEP in found.paths) is told
    assert found.calibration.host.step_s.value == pytest.approx(FIGURES[STEP].value, rel=1e-4)
    if not told:
        assert found.calibration.host.step_s == FIGURES[STEP]
    assert found.calibration.host.request_s.value == pytest.approx(2 * FIGURES[REQUEST].value, rel=1e-3)


def test_a_figure_of_two_factors_has_the_errors_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting per step is scaled with the pass, and by itself: its error is of both."""
    drafting, passes = "host.draft_step_s", "host.pass_s.eagle"
    step = replace(FIGURES[STEP], value=1e-3)
    base = replace(BASE, host=replace(BASE.host, draft_step_s=step))
    monkeypatch.setitem(FIGURES, drafting, step)

    def law(factors: dict[str, float]) -> Array:
        return np.concatenate([np.full(7, factors[passes]), np.full(7, factors[drafting])])

    measured = rows([*LEVELS, *(3 * each for each in LEVELS)], k=2, proposer="eagle")
    found = fit(monkeypatch, law, measured, passes, drafting, base=base)
    one_pass, own = (figures_of(found.calibration)[path] for path in (passes, drafting))
    factor = np.exp(0.05 * 3 / 4)
    assert one_pass.value == pytest.approx(FIGURES[passes].value * factor, rel=1e-3)
    assert own.value == pytest.approx(1e-3 * 3 * factor, rel=1e-3)
    together = f"; one factor for all {passes}, {drafting}"
    assert one_pass.provenance.note.endswith(together)
    # of y1 = x and y2 = x + z with errors of e: x has e, z has e sqrt(2), and the figure both
    assert one_pass.stderr is not None
    relative = one_pass.stderr / one_pass.value
    assert own.stderr == pytest.approx(own.value * relative * np.sqrt(3), rel=1e-3)


def test_what_gpus_need_is_refused_by_name_unless_a_part_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def law(factors: dict[str, float]) -> Array:
        return np.full(4, factors[STEP])

    measured = rows([2.0] * 4)
    with pytest.raises(
        InputError, match=r"largest is 8\): the compute-bound slope is not id.*; add such rows, or"
    ):
        fit(monkeypatch, law, measured, STEP, FLOPS, partial=False)
    found = fit(monkeypatch, law, measured, STEP, FLOPS)
    assert [note.split(" ")[0] for note in found.notes] == ["no", "no"]
    assert found.notes[1] == "no row with K > 0: drafting is not identified"
    drafted = fit(monkeypatch, law, rows([2.0] * 4, k=1, proposer="ngram"), STEP, FLOPS)
    assert len(drafted.notes) == 1


def test_a_fit_of_host_times_keeps_the_second_gemm_source(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fit(monkeypatch, level(STEP, 4), rows([2.0] * 4), STEP).calibration
    assert found.gemm_alternate == BASE.gemm_alternate
    assert found.host_alternate is None
    attention = "attention.bandwidth_eff"
    other = fit(monkeypatch, lambda f: 1 / np.full(4, f[attention]), rows([1.3] * 4), attention).calibration
    assert other.host_alternate == BASE.host_alternate


def test_three_rows_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fit(monkeypatch, level(STEP, 3), rows([2.0] * 3), STEP).paths == {STEP}
    with pytest.raises(InputError, match="got 2, at least 3"):
        fit(monkeypatch, level(STEP, 2), rows([2.0] * 2), STEP)


def test_a_kink_is_followed_from_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host time that hides until it is longer than the base's: its whole width shows it, no slope there."""
    sizes = np.array([1.0, 1.5, 2.0, 2.5])

    def law(factors: dict[str, float]) -> Array:
        return np.maximum(sizes, factors[STEP])

    found = fit(monkeypatch, law, rows([4.0] * 4), STEP)
    assert found.calibration.host.step_s.value == pytest.approx(4 * FIGURES[STEP].value, rel=1e-3)
