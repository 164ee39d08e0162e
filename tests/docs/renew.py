"""Write what the commands print now into the pages: ``python -m tests.docs.renew [PAGE ...]``.

Lines left out stay left out, as far as the others are found again. Read the difference before you keep it.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.docs.compare import renewed, wrapped
from tests.docs.pages import PAGES, REPOSITORY, blocks
from tests.docs.shell import Shell


def renew(page: Path) -> None:
    """Run the commands of a page and rewrite the blocks of what they print; says how long each took."""
    text = page.read_text(encoding="utf-8")
    lines, moved = text.splitlines(), 0
    with tempfile.TemporaryDirectory() as folder, Shell(Path(folder)) as shell:
        for block in blocks(text):
            if block.not_run:
                continue
            start, before = time.perf_counter(), _processor_s()
            code, printed = shell.run("\n".join(block.commands.lines))
            took = f"{time.perf_counter() - start:.1f} s, {_processor_s() - before:.1f} s of processor time"
            print(f"{page.name}:{block.commands.first}: exit code {code}, {took}", flush=True)
            if code != block.exit_code:
                print(printed)
            elif block.output is not None:
                old = block.output
                new = [" " * old.indent + one if one else one for one in renewed(old.lines, wrapped(printed))]
                lines[old.first + moved : old.end + moved] = new
                moved += len(new) - len(old.lines)
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _processor_s() -> float:
    """Of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        renew(REPOSITORY / name)
