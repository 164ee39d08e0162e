"""Engines and models that the live tests share; without an installed engine they skip, saying so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.live.install import ENGINES, Engine
from tests.live.server import environment
from tests.live.verdicts import IN_ENGINE
from tests.live.walk import Pair


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is live."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.live)


def _installed(name: str) -> Engine:
    engine = ENGINES[name]
    if not engine.ready:
        pytest.skip(f"{name} {engine.version} is not installed: run `make test-live`")
    return engine


@pytest.fixture(scope="session")
def vllm() -> Engine:
    """The installed vLLM."""
    return _installed("vllm")


@pytest.fixture(scope="session")
def sglang() -> Engine:
    """The installed SGLang."""
    return _installed("sglang")


@pytest.fixture(scope="session")
def pair(vllm: Engine, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A target and a draft model of exactly known acceptance, alpha 0.7."""
    folder = tmp_path_factory.mktemp("pair")
    script = str(IN_ENGINE / "make_pair.py")
    command = [str(vllm.python), script, str(folder), "--alpha", "0.7", "--cycle", "4096"]
    subprocess.run(command, check=True, env=environment(), capture_output=True)
    return Pair.load(folder)
