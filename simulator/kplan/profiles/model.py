"""Target models: architecture and what it costs in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from kplan.profiles.architecture import Decoder
from kplan.provenance import Provenance


@dataclass(frozen=True)
class Model:
    """A dense decoder-only model.

    Attributes:
        name: profile name, for example ``llama-3.1-8b``.
        hf_id: Hugging Face repository.
        summary: one line for listings.
        decoder: its architecture.
        tied_embeddings: the LM head is the embedding matrix.
        weight_bytes_per_param: 2 for bf16.
        kv_bytes_per_value: 2 for a bf16 KV cache.
        provenance: source of the architecture.
    """

    name: str
    hf_id: str
    summary: str
    decoder: Decoder
    tied_embeddings: bool
    weight_bytes_per_param: float
    kv_bytes_per_value: float
    provenance: Provenance

    @property
    def params(self) -> int:
        """Parameters, embeddings included."""
        decoder = self.decoder
        vocab_matrices = 1 if self.tied_embeddings else 2
        embedding = vocab_matrices * decoder.vocab * decoder.hidden
        return decoder.layers * decoder.layer_params() + embedding + decoder.hidden

    def weight_bytes(self, tp: int = 1) -> float:
        """Bytes of weights on one of ``tp`` ranks."""
        return self.params * self.weight_bytes_per_param / tp

    def kv_bytes_per_token(self, tp: int = 1) -> float:
        """Bytes of KV cache that one token takes on one of ``tp`` ranks."""
        return self.decoder.kv_values_per_token(tp) * self.kv_bytes_per_value
