"""Write a target and a draft model of exactly known greedy acceptance (runs in the engine's environment).

    python make_pair.py FOLDER [--alpha 0.7] [--cycle 4096]

Writes FOLDER/target, FOLDER/draft (config, weights, tokenizer) and FOLDER/pair.json.

The target's attention and MLP write zeros into the residual stream, so its hidden state is the embedding of
the last token, and its LM head sends token t to next[t]: greedy decoding walks one cycle through all normal
tokens. The draft is the same but for a share 1 - alpha of the tokens, which it sends elsewhere, so a draft is
accepted up to the first of those. The layers still do their full work, so a step takes real time. pair.json
holds both maps: what must be emitted and accepted follows from it without the engine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")


def cycles(length: int, alpha: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The maps token -> next token of target and draft, each (length + 4,) int64.

    They differ on round(length * (1 - alpha)) tokens, chosen at random.
    """
    rng = np.random.default_rng(seed)
    first = len(SPECIAL)
    order = rng.permutation(length) + first
    target = np.arange(length + first)
    target[order] = np.roll(order, -1)
    differ = rng.choice(order, size=round(length * (1 - alpha)), replace=False)
    draft = target.copy()
    draft[differ] = target[np.roll(differ, 1)]  # each takes another's successor, so none keeps its own
    return target, draft


def write_model(folder: Path, follow: np.ndarray, *, hidden: int, layers: int, seed: int) -> None:
    """Write a Llama whose greedy next token is ``follow[token]``.

    Raises:
        ArithmeticError: in bfloat16 it is not.
    """
    torch.manual_seed(seed)
    vocabulary = len(follow)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        embedding = torch.nn.functional.normalize(torch.randn(vocabulary, hidden), dim=1)
        model.model.embed_tokens.weight.copy_(embedding)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        head = torch.zeros(vocabulary, hidden)
        head[torch.from_numpy(follow)] = embedding
        model.lm_head.weight.copy_(head)
    model.to(torch.bfloat16)
    hidden_state = torch.nn.functional.normalize(model.model.embed_tokens.weight.float(), dim=1)
    greedy = (hidden_state @ model.lm_head.weight.float().T).argmax(1).numpy()
    if not np.array_equal(greedy[len(SPECIAL) :], follow[len(SPECIAL) :]):
        raise ArithmeticError(
            f"{folder.name}: {hidden} dimensions do not separate {vocabulary} tokens in bfloat16"
        )
    model.save_pretrained(folder)
    _tokenizer(vocabulary).save_pretrained(folder)


def _tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """One word per token: the text "w17 w4" is the tokens 17, 4."""
    words = {word: i for i, word in enumerate(SPECIAL)} | {
        f"w{i}": i for i in range(len(SPECIAL), vocabulary)
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    return fast


def main() -> None:
    """Write the pair."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--alpha", type=float, default=0.7, help="share of tokens whose draft is right")
    parser.add_argument("--cycle", type=int, default=4096, help="tokens of the cycle")
    asked = parser.parse_args()
    target, draft = cycles(asked.cycle, asked.alpha)
    asked.folder.mkdir(parents=True, exist_ok=True)
    write_model(asked.folder / "target", target, hidden=256, layers=4, seed=1)
    write_model(asked.folder / "draft", draft, hidden=128, layers=1, seed=2)
    (asked.folder / "pair.json").write_text(json.dumps({"target": target.tolist(), "draft": draft.tolist()}))


if __name__ == "__main__":
    main()
