"""Draw the picture of the README anew: ``make recommend QPS=64``, then ``python -m tests.docs.picture``.

It is the chart of other loads of that report, as Chromium shows it, light and dark.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kplan.cli.files import read_plan
from kplan.report.document import Chart, document
from kplan.report.load_figures import sweep
from tests.docs.pages import REPOSITORY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZE = (820, 592)
THEMES = {"light": "1", "dark": "0"}
"""Theme -> what Chromium calls it."""


def draw(plan: Path, folder: Path) -> None:
    """Write ``load-light.png`` and ``load-dark.png`` to ``folder``. Raises SystemExit without a browser."""
    if CHROMIUM is None:
        raise SystemExit("no Chromium on this machine: nothing is drawn")
    figure = sweep(read_plan(plan))
    if figure is None:
        raise SystemExit(f"{plan} has no chart of other loads")
    figure.update_layout(margin={"t": 32})
    chart = Chart("chart-sweep", "", "", figure)
    body = '<main style="padding:8px;max-width:none"><div id="chart-sweep"></div></main>'
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        page.write_text(document("picture", body, [chart]), encoding="utf-8")
        for theme, scheme in THEMES.items():
            target = folder / f"load-{theme}.png"
            command = [
                CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--proxy-server=127.0.0.1:9", "--virtual-time-budget=20000",
                "--force-device-scale-factor=1.5",
                f"--window-size={SIZE[0]},{SIZE[1]}", f"--blink-settings=preferredColorScheme={scheme}",
                f"--user-data-dir={scratch}/{theme}", f"--screenshot={target}", page.as_uri(),
            ]  # fmt: skip
            subprocess.run(command, check=True, capture_output=True, timeout=180)
            print(f"wrote {target}")


if __name__ == "__main__":
    source = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/recommend/plan.json")
    draw(source, REPOSITORY / "docs" / "images")
