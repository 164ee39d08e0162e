"""Drafters: what proposes, with which architecture, under which name in each engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kplan.profiles.architecture import Decoder, Matmul
from kplan.profiles.dtype import Dtype
from kplan.provenance import Provenance


class DrafterKind(StrEnum):
    """How a drafter works, which is how it is priced."""

    HEAD = "head"  # autoregressive head on the target's hidden states (EAGLE, EAGLE-3, MTP)
    MODEL = "model"  # a smaller model of its own, autoregressive
    PARALLEL = "parallel"  # all K drafts in one pass over K mask tokens (PARD, P-EAGLE, DFlash)
    SELF = "self"  # the target itself with a small part of its KV cache (MagicDec)
    LOOKUP = "lookup"  # matching in the context, on the CPU


@dataclass(frozen=True)
class Tree:
    """A draft tree instead of a chain: ``depth`` passes, each over ``topk`` tokens per request.

    K is then the number of drafted nodes that the target verifies, beside the token already decided: SGLang's
    ``num_draft_tokens`` is K + 1. It is ``verified``, at every step.
    """

    depth: int
    topk: int
    verified: int

    @property
    def nodes(self) -> int:
        """Drafted nodes to choose the K from: topk at the first depth, topk x topk at later ones (SGLang)."""
        return self.topk + (self.depth - 1) * self.topk**2


@dataclass(frozen=True)
class Drafter:
    """A proposer bound to the targets it drafts for.

    Attributes:
        name: profile name.
        proposer: name on the command line: ngram, eagle, eagle3, mtp, draft-model, ...
        kind: how it is priced.
        hf_id: Hugging Face repository; None for a lookup.
        targets: names of the models it drafts for; ``("*",)`` for any.
        engine_methods: engine -> its name for the method.
        summary: one line for listings.
        decoder: its layers and LM head; None for a lookup and for the target itself.
        fused_hidden: hidden vectors that its input projection reduces to one (EAGLE 2, EAGLE-3 3, else 0).
        fuses_every_pass: the projection runs at every pass (EAGLE), not only on verified tokens (EAGLE-3).
        own_embedding: it holds an embedding of its own.
        own_head: it holds an LM head of its own (else it uses the target's).
        weight_dtype, kv_dtype: of its layers' matrices and of its KV cache.
        tree: it drafts a tree.
        head: proposer whose head it runs in another form; None for one of its own.
        kv_budget: tokens of KV cache that a pass of SELF attends to.
        provenance: source of the architecture.
    """

    name: str
    proposer: str
    kind: DrafterKind
    hf_id: str | None
    targets: tuple[str, ...]
    engine_methods: Mapping[str, str]
    summary: str
    provenance: Provenance
    decoder: Decoder | None = None
    fused_hidden: int = 0
    fuses_every_pass: bool = False
    own_embedding: bool = False
    own_head: bool = False
    weight_dtype: Dtype = Dtype.BF16
    kv_dtype: Dtype = Dtype.BF16
    tree: Tree | None = None
    head: str | None = None
    kv_budget: int | None = None

    @property
    def one_k(self) -> bool:
        """Engines keep one K while it drafts: a tree has a fixed form, a parallel draft a fixed mask."""
        return self.tree is not None or self.kind is DrafterKind.PARALLEL

    @property
    def fusion(self) -> Matmul | None:
        """The input projection: whole on every rank, and bf16 (a plain linear layer in vLLM's heads)."""
        if self.decoder is None or not self.fused_hidden:
            return None
        return Matmul(self.decoder.hidden, self.fused_hidden * self.decoder.hidden, quantized=False)

    @property
    def params(self) -> int:
        """Parameters that it adds to the server."""
        if self.decoder is None:
            return 0
        return self.decoder.layers_params() + self._plain_params(self.decoder, 1)

    def weight_bytes(self, tp: int = 1) -> float:
        """Bytes of added weights on one of ``tp`` ranks: its share of the matrices, and all of what is
        replicated."""
        if self.decoder is None:
            return 0.0
        plain = self._plain_params(self.decoder, tp) * Dtype.BF16.bytes
        return self.decoder.layers_bytes(self.weight_dtype, tp) + plain

    def _plain_params(self, decoder: Decoder, tp: int) -> int:
        """Of the projection, and of an embedding and an LM head of its own: bf16 whatever the layers are."""
        vocab = decoder.head_matmul(tp).params * (int(self.own_embedding) + int(self.own_head))
        return vocab + (self.fusion.params if self.fusion else 0)

    def kv_bytes_per_token(self, tp: int = 1) -> float:
        """Bytes of KV cache that one token adds on one of ``tp`` ranks."""
        return 0.0 if self.decoder is None else self.decoder.kv_values_per_token(tp) * self.kv_dtype.bytes
