"""Target models: architecture and what it costs in bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kplan.profiles.architecture import Decoder
from kplan.profiles.dtype import Dtype
from kplan.provenance import Provenance


@dataclass(frozen=True)
class Model:
    """A decoder-only model.

    Attributes:
        name: profile name, for example ``llama-3.1-8b``.
        hf_id: Hugging Face repository.
        summary: one line for listings.
        decoder: its architecture.
        tied_embeddings: the LM head is the embedding matrix.
        weight_dtype: of the layers' matrices; embeddings, LM head, router and norms stay bf16.
        kv_dtype: of the KV cache.
        mtp_layers: multi-token-prediction layers that the checkpoint holds; their weights are the drafter's.
        max_context: longest sequence that it was made for; None when not stated.
        provenance: source of the architecture.
    """

    name: str
    hf_id: str
    summary: str
    decoder: Decoder
    tied_embeddings: bool
    provenance: Provenance
    weight_dtype: Dtype = Dtype.BF16
    kv_dtype: Dtype = Dtype.BF16
    mtp_layers: int = 0
    max_context: int | None = None

    def stored(self, weights: Dtype | None, kv: Dtype | None) -> Model:
        """The same model with these formats of weights and KV cache; None leaves the profile's."""
        return replace(self, weight_dtype=weights or self.weight_dtype, kv_dtype=kv or self.kv_dtype)

    @property
    def params(self) -> int:
        """Parameters, embeddings included."""
        return self.decoder.layers_params() + self._vocab_params(1) + self.decoder.hidden

    def weight_bytes(self, tp: int = 1) -> float:
        """Bytes of weights on one of ``tp`` ranks: its share of the matrices, and what is replicated."""
        rest = self._vocab_params(tp) + self.decoder.hidden
        return self.decoder.layers_bytes(self.weight_dtype, tp) + rest * Dtype.BF16.bytes

    def _vocab_params(self, tp: int) -> int:
        """Of the embedding and the LM head, which split by tokens."""
        return (1 if self.tied_embeddings else 2) * self.decoder.head_matmul(tp).params

    def kv_bytes_per_token(self, tp: int = 1) -> float:
        """Bytes of KV cache that one token takes on one of ``tp`` ranks."""
        return self.decoder.kv_values_per_token(tp) * self.kv_dtype.bytes
