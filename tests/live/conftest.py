"""Engines and models that the live tests share; without an installed engine they skip, saying so."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kplan.live.steplog import engine_site, install, is_installed, uninstall
from tests.live.calibrated import Calibrated, calibrate
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


@pytest.fixture(scope="session")
def logging_vllm(vllm: Engine) -> Iterator[Engine]:
    """The engine with the plugin that logs its steps, which it keeps when it had it."""
    site = engine_site(vllm.python)
    had = is_installed(site)
    install(site)
    yield vllm
    if not had:
        uninstall(site)


@pytest.fixture(scope="session")
def calibrated(logging_vllm: Engine, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    """Four servers of the pair, timed, calibrated on and recorded."""
    return calibrate(logging_vllm, pair, tmp_path_factory.mktemp("calibrate"))
