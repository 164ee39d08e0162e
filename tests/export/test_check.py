"""Asking an engine: what can be wrong with the interpreter is one line, and answers are taken as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kplan.errors import InputError
from kplan.export import Case, Verdict, check, choose_engine, engines_of, version_warning
from kplan.export.check import SCRIPTS
from kplan.export.standin import config_of, stand_ins
from kplan.profiles import load_drafter, load_model
from kplan.profiles.hf_config import read_model

ANSWERS = """#!/bin/sh
case "$1" in
  *which_engines.py) echo '{"vllm": "0.31.9"}' ;;
  *) cat > "%(asked)s"; echo chatter; echo '{"stage": "ok", "error": "", "stood_in": ["a/b"], "k": 3}'
     echo '{"stage": "config", "error": "ValueError: no"}' ;;
esac
"""


def pretend(folder: Path, text: str) -> Path:
    """An interpreter that answers as ``text`` says."""
    python = folder / "python"
    python.write_text(text)
    python.chmod(0o755)
    return python


def test_answers_come_back_in_order_with_their_release(tmp_path: Path) -> None:
    asked = tmp_path / "asked.json"
    python = pretend(tmp_path, ANSWERS % {"asked": asked})
    cases = [Case.of(tmp_path / "a.yaml"), Case("pasted", ("m", "--x"), tmp_path)]
    first, second = check(cases, python, None, {"a/b": {"model_type": "llama"}, "c/d": tmp_path})
    assert (first.accepted, first.version, dict(first.runs)) == (True, "0.31.9", {"k": 3})
    assert "accepts" in first.line
    assert "a/b" in first.line
    assert second.line == "vLLM 0.31.9 refuses pasted (config): ValueError: no"
    question = json.loads(asked.read_text())
    assert question["cases"][0] == {"argv": ["--config", "a.yaml"], "folder": str(tmp_path)}
    assert question["stand_ins"]["c/d"] == str(tmp_path)
    assert "0.31.9" in version_warning(first)
    assert "WARNING" in version_warning(first)


def test_a_build_of_the_known_release_is_no_other() -> None:
    assert version_warning(Verdict("x", "vllm", "0.32.0+cpu", "ok", "", (), {})) == ""


def test_an_interpreter_without_an_engine_says_so() -> None:
    assert engines_of(Path(sys.executable)) == {}
    with pytest.raises(InputError, match="has neither vllm nor sglang"):
        check([], Path(sys.executable))


@pytest.mark.parametrize(
    ("found", "engine", "says"),
    [
        ({"vllm": "1", "sglang": "2"}, None, "--check-engine"),
        ({"vllm": "1"}, "sglang", "not sglang"),
        ({}, "vllm", "neither"),
    ],
)
def test_the_engine_must_be_told_apart(found: dict[str, str], engine: str | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        choose_engine(found, Path("python"), engine)


def test_what_is_no_interpreter_is_one_line(tmp_path: Path) -> None:
    for python, says in (
        (tmp_path / "nowhere", "No such file"),
        (tmp_path, "cannot be run"),
        (pretend(tmp_path, "#!/bin/sh\necho broken >&2\nexit 3\n"), "ended with 3: broken"),
    ):
        with pytest.raises(InputError, match=says) as caught:
            check([], python)
        assert "\n" not in str(caught.value)


def test_missing_answers_are_told(tmp_path: Path) -> None:
    python = pretend(tmp_path, ANSWERS % {"asked": tmp_path / "asked"})
    with pytest.raises(InputError, match="answered 2 of 1"):
        check([Case.of(tmp_path / "a.yaml")], python)


def test_the_scripts_are_beside_the_package() -> None:
    assert {"check_vllm.py", "check_sglang.py", "which_engines.py"} <= {one.name for one in SCRIPTS.iterdir()}


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "glm-4.5-air"])
def test_a_stand_in_has_the_sizes_of_its_model(name: str, tmp_path: Path) -> None:
    model = load_model(name)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_of(model.decoder, 4096, model.mtp_layers)))
    back = read_model(file)
    assert (back.decoder.layers, back.decoder.hidden, back.decoder.vocab) == (
        model.decoder.layers,
        model.decoder.hidden,
        model.decoder.vocab,
    )
    assert (back.mtp_layers, back.max_context) == (model.mtp_layers, 4096)


def test_a_drafter_with_weights_has_a_stand_in_too() -> None:
    model = load_model("llama-3.1-8b")
    assert set(stand_ins(model, load_drafter("ngram", model))) == {model.hf_id}
    eagle3 = load_drafter("eagle3", model)
    assert set(stand_ins(model, eagle3)) == {model.hf_id, eagle3.hf_id}
