"""What the fault tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplan.export import plan_json
from tests.export.sample import make_plan


@pytest.fixture(scope="session")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan.json that every engine runs."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(plan_json(make_plan()), encoding="utf-8")
    return path
