"""SmolLM2-135M-Instruct on the CPU engine: a language model whose acceptance depends on the text.

It is unpacked once, to a folder in the user's cache beside the engine's environment.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kplan.export.engines import LOOKUP_WINDOW
from tests.live.install import Engine, one_at_a_time
from tests.live.server import Server, environment, serve

MODEL = "SmolLM2-135M-Instruct"
K = 7
SEATS = 16
_SCRIPT = Path(__file__).parent / "in_engine" / "make_smol.py"


def unpacked(engine: Engine) -> Path:
    """The folder with config, weights and tokenizer.

    Raises:
        RuntimeError: the engine's environment cannot unpack it (its message is in the error).
    """
    key = hashlib.sha256(engine.pins.read_bytes() + _SCRIPT.read_bytes()).hexdigest()[:12]
    folder = engine.folder.with_name(f"smollm2-135m-instruct-{key}")
    with one_at_a_time(folder):
        if (folder / ".ready").is_file():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        command = [engine.python, _SCRIPT, folder]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{_SCRIPT.name} could not unpack {MODEL}:\n{done.stderr[-2000:]}")
        (folder / ".ready").touch()
    return folder


@contextmanager
def serve_ngram(engine: Engine, folder: Path) -> Iterator[Server]:
    """Serve it with n-gram lookup, every response telling its steps, until the block ends.

    Args:
        engine: the installed vLLM.
        folder: gets the config and the log.
    """
    low, high = LOOKUP_WINDOW
    config = folder / "vllm.yaml"
    config.write_text(
        f"model: {unpacked(engine)}\n"
        f"served-model-name: {MODEL}\n"
        "dtype: bfloat16\n"
        f"max-num-seqs: {SEATS}\n"
        "per-request-spec-decode-metrics: detailed\n"
        "speculative-config:\n"
        "  method: ngram\n"
        f"  num_speculative_tokens: {K}\n"
        f"  prompt_lookup_min: {low}\n"
        f"  prompt_lookup_max: {high}\n"
    )
    with serve(engine, config) as server:
        yield server
