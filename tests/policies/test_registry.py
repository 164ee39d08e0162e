"""Policy texts: they round-trip, and every bad one is told in one line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplan.errors import InputError
from kplan.registry import list_policies, parse_policy

from .helpers import untimed, view
from .test_sglang_ema import ladders
from .test_table import range_lists

NAMES = (
    "band", "best-expected", "budget", "combined-oracle", "confidence", "context-table", "fixed", "goodput",
    "hazard-cost", "heuristic", "match-else", "off", "oracle", "position-ema", "probe", "request-ema",
    "sglang-ema", "table", "thompson", "throughput-aware", "ucb",
)  # fmt: skip

texts = st.one_of(
    st.sampled_from(["off", "oracle", "heuristic", "goodput", "sglang-ema"]),
    st.integers(0, 254).map(lambda k: f"fixed:{k}"),
    range_lists().map(
        lambda ranges: "table:" + ",".join(f"{a}-{'' if b is None else b}={k}" for a, b, k in ranges)
    ),
    st.tuples(st.integers(1, 10), st.integers(1, 4)).map(lambda v: f"heuristic:start={v[0]},up={v[1]}"),
    st.floats(0.01, 0.5).map(lambda weight: f"goodput:weight={weight!r}"),
    st.sampled_from(
        [
            "band:target=0.9",
            "budget:sizes=4",
            "confidence:product=true",
            "hazard-cost",
            "probe:hold=9",
            "context-table:1-32x0-2047=3,1-32x2048-=5,33-x0-=1",
            "position-ema:cap=[[1,4,3],[5,null,0]]",
            "request-ema:margin=0.5",
            "thompson:seed=4",
            "throughput-aware:candidates=[1,4]",
            "ucb:dwell=2",
        ]
    ),
    ladders().map(lambda ladder: f"sglang-ema:{json.dumps(ladder)}"),
    st.tuples(ladders(), st.integers(1, 9)).map(
        lambda v: f"sglang-ema:ladder={json.dumps(v[0])},update_interval={v[1]},graph_sizes=[4, 8]"
    ),
)


@untimed
@given(texts)
def test_a_policy_prints_back_as_the_text_that_makes_it(text: str) -> None:
    spec = parse_policy(text)
    again = parse_policy(spec.text)
    assert again == spec
    assert again.text == spec.text
    assert again.build().__class__ is spec.build().__class__
    ours, theirs = (getattr(s.build(), "config", s.build)() for s in (spec, again))
    assert ours == theirs or not isinstance(ours, dict)


@untimed
@given(texts)
def test_a_spec_survives_a_worker_process(text: str) -> None:
    spec = parse_policy(text)
    sent = pickle.loads(pickle.dumps(spec))
    assert sent == spec
    assert sent.info == spec.info
    assert sent.cls is spec.cls


def test_the_registered_names() -> None:
    assert set(NAMES) <= {name for name, _ in list_policies()}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no policy is called ''"),
        ("fixd:3", "did you mean fixed?"),
        ("magic", f"choose from {', '.join(NAMES)}"),
        ("off:3", "it takes no parameter"),
        ("fixed", "a value is missing; it takes k"),
        ("fixed:", "a value is missing; it takes k"),
        ("fixed:-1", "0 to 254"),
        ("fixed:x", "k must be an integer, not 'x'"),
        ("fixed:2.5", "k must be an integer, not '2.5'"),
        ("fixed:255", "0 to 254 (the most drafts kplan's traces can hold), not 255"),
        ("fixed:1,2", "not key=value"),
        ("fixed:k=1,k=2", "given twice"),
        ("table", "the table is empty"),
        ("table:", "the table is empty"),
        ("table:ranges=[]", "the table is empty"),
        ("table:2-4=3", "must start at batch size 1, not 2"),
        ("table:1-8=3,8-9=1", "ranges 1-8 and 8-9 overlap at batch size 8"),
        ("table:1-=3,8-9=1", "ranges 1- and 8-9 overlap at batch size 8"),
        ("table:8-1=3", "range 8-1 is reversed; write 1-8=3"),
        ("table:0-4=3", "must be an integer 1 to 1000000000, not 0"),
        ("table:1-8=-1", "not -1"),
        ("table:1-8=255", "not 255"),
        ("table:1-8", "range '1-8' is not START-END=K"),
        ("table:1-8=3,,", "range '' is not START-END=K"),
        ("goodput:wait=3", "it has no parameter 'wait'; it takes weight, start_acceptance, probe_every"),
        ("goodput:weight=high", "weight must be a number, not 'high'"),
        ("goodput:weight=7", "weight must be a number 0.001 to 1, not 7.0"),
        ("goodput:weight=nan", "weight must be a number"),
        ("heuristic:start=0", "start must be an integer 1 to 1000000000, not 0"),
        ("sglang-ema:none.json", "cannot be read"),
        ("sglang-ema:{}", "batch-size key"),
        ('sglang-ema:{"1":', "is not JSON"),
        ('sglang-ema:{"1":{"candidate_steps":[1]},"1":{"candidate_steps":[3]}}', "key '1' stands twice"),
        ("sglang-ema:start=2", "not 2"),
        ("no.such.module:Policy", "ModuleNotFoundError"),
        ("no/such/file.py:Policy", "FileNotFoundError"),
        ("kplan.errors:Nothing", "has no class Nothing"),
        ("kplan.errors:InputError", "give it a method choose_k"),
        ("kplan_policies.table:Fixd", "it has Off, Fixed, BatchTable"),
        ("kplan_policies.table:Fixed:-1", "0 to 254"),
    ],
)
def test_a_bad_text_is_told_in_one_line(text: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_policy(text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "canonical"), [("table:5=2,1-4=3", "table:1-4=3,5-5=2"), (" off ", "off")])
def test_shorthand(text: str, canonical: str) -> None:
    assert parse_policy(text).text == canonical


def test_an_adaptive_file_is_written_out_in_the_text(tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    path.write_text('{"1": {"candidate_steps": [1, 2]}}')
    spec = parse_policy(f"sglang-ema:{path}")
    path.unlink()
    assert parse_policy(spec.text) == spec
    path.write_text("[1]")
    with pytest.raises(InputError, match="must be a JSON object, not list"):
        parse_policy(f"sglang-ema:{path}")


def written(tmp_path: Path, source: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(source)
    return str(path)


CALM = '''
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated
from kplan.policy import StepView
from kplan.space import IntRange

@dataclass
class Calm:
    """K while the batch is small."""
    k: Annotated[int, IntRange(0, 7)] = 3
    calm_batch: int = 2
    name: str | None = None

    def choose_k(self, step: StepView) -> int:
        return self.k if step.batch <= self.calm_batch else 1
'''


def test_a_class_in_a_file_of_ones_own(tmp_path: Path) -> None:
    spec = parse_policy(f"{written(tmp_path, CALM)}:Calm:k=5,name=blue")
    policy: Any = spec.build()
    assert (policy.choose_k(view([0])), policy.choose_k(view([0, 1, 2])), policy.name) == (5, 1, "blue")
    assert spec.text.endswith("mine.py:Calm:k=5,name=blue")
    assert spec.info.summary == "K while the batch is small."
    assert not spec.exportable
    assert spec.why_not
    assert pickle.loads(pickle.dumps(spec)).cls is spec.cls


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    first = parse_policy(f"{written(tmp_path, CALM)}:Calm")
    second = parse_policy(
        f"{written(tmp_path, CALM.replace('k: Annotated', 'depth: int = 0; k: Annotated'))}:Calm"
    )
    assert not hasattr(first.build(), "depth")
    assert hasattr(second.build(), "depth")


def test_a_derived_class_is_not_taken_for_its_parent(tmp_path: Path) -> None:
    source = """
from kplan_policies.oracle import Oracle
from kplan_policies.table import Fixed
class Mine(Fixed): pass
class Ahead(Oracle): pass
"""
    mine = parse_policy(f"{written(tmp_path, source)}:Mine:3")
    assert mine.text.endswith("mine.py:Mine:k=3")
    assert not mine.exportable
    ahead = parse_policy(f"{tmp_path / 'mine.py'}:Ahead")
    assert ahead.info.needs_future
    assert not getattr(ahead.build(), "compiled_oracle", False)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("class Mine: pass", "Mine is no policy"),
        ("Mine = 3", "has no class Mine; it has no class with choose_k"),
        ("class Mine:\n def __init__(self): raise KeyError('x')\n def choose_k(self, step): ...", "KeyError"),
        ("class Mine:\n def __init__(self, *, k): ...\n def choose_k(self, step): ...", "it takes k"),
        (
            "class Mine:\n def __init__(self): raise ValueError('a\\nb')\n def choose_k(self, step): ...",
            "a b",
        ),
    ],
)
def test_what_a_users_file_may_do_wrong(tmp_path: Path, source: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_policy(f"{written(tmp_path, source)}:Mine")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
