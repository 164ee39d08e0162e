"""Advice of the command line as the page says it."""

from __future__ import annotations

import pytest

from kplan.cli.app import app
from kplan.dashboard import wording
from kplan.dashboard.app import Answers, make_app
from kplan.dashboard.desk import Desk
from kplan.dashboard.guard import Guard
from kplan.dashboard.job import FullRuns
from kplan.dashboard.quick import Look
from kplan.dashboard.state import State
from kplan.dashboard.wording import on_page
from kplan.export import Exports
from tests.dashboard.made import look_of
from tests.dashboard.served import answer_body, ask, served


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("use more GPUs per replica (--tp) or", "use more GPUs per replica (tensor parallel) or"),
        ("of 0.9; --tp 2 fits", "of 0.9; tensor parallel 2 fits"),
        ("your own traces (--traces) before", "your own traces (kplan dashboard --traces) before"),
        (
            "too short; use --requests 2000 or more.",
            "too short; use kplan recommend --requests 2000 or more.",
        ),
        ("give --slo-tpot-ms 20, --proposer eagle", "give SLO on TPOT 20, proposer eagle"),
        (
            "kplan traces import FILE --proposer NAME says it",
            "kplan traces import FILE --proposer NAME says it",
        ),
        (
            "fit its own with `kplan calibrate` and give it by --calibration.",
            "fit its own with `kplan calibrate` and give it by kplan recommend --calibration.",
        ),
        ("K = 2 (eagle3), 95% -0.5 -- nothing to change", "K = 2 (eagle3), 95% -0.5 -- nothing to change"),
    ],
)
def test_an_option_is_told_as_the_control_or_the_command_that_has_it(told: str, said: str) -> None:
    assert on_page(told) == said


def test_every_option_that_a_control_stands_for_is_one_of_recommend() -> None:
    import typer

    recommend = typer.main.get_command(app).commands["recommend"]  # type: ignore[attr-defined]
    options = {name for parameter in recommend.params for name in parameter.opts}
    assert set(wording._CONTROLS) <= options


def test_the_page_says_none_of_the_options_that_it_has_controls_for() -> None:
    def look(state: State) -> Look:
        made = look_of(state)
        why = ("not settled; use --requests 200.", "split it over GPUs (--tp)")
        answer = made.plan.answer.model_copy(update={"words": "loosen --slo-ttft-ms", "why": why})
        plan = made.plan.model_copy(update={"answer": answer})
        exports = Exports({}, {"vllm": "give --drafter"})
        return Look(plan, exports, made.map, made.at, made.how, made.full)

    answers = Answers(Desk(look), FullRuns(lambda state, _tell: look(state)))
    with served(lambda: make_app(answers, Guard("127.0.0.1", None))) as url:
        status, text = ask(f"{url}/_dash-update-component", answer_body("qps=12"))
    answers.close()
    assert status == 200
    for said in (
        "loosen SLO on TTFT",
        "use kplan recommend --requests 200.",
        "split it over GPUs (tensor parallel)",
        "vllm: no config: give kplan dashboard --drafter",
    ):
        assert said in text
