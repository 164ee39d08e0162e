"""A server's step time in plain arithmetic: what logs and tables of a fit's tests are made with.

Llama-3.1-8B on one H100 SXM under vLLM, written out from the description of the model and not from kplan's
code, so that a fit which finds the coefficients again has found them and not its own formula's inverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

BANDWIDTH, PEAK = 3.35e12, 989.4e12
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB = 32, 4096, 32, 8, 128, 14336, 128256
MATRICES = ((6144, 4096), (4096, 4096), (2 * MLP, HIDDEN), (HIDDEN, MLP))
GRAPHS = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]


@dataclass(frozen=True)
class Server:
    """The coefficients to be found; everything else is that of the shipped calibration, given by a test."""

    bandwidth_eff: float
    flops_eff: float
    step_s: float
    request_s: float
    pass_s: float
    rest: dict[str, float]

    def matrices_s(self, tokens: int) -> float:
        """All layers, captured graphs padding small steps."""
        padded = next((size for size in GRAPHS if size >= tokens), tokens)
        return LAYERS * sum(self._matrix_s(padded, n, k) for n, k in MATRICES)

    def _matrix_s(self, m: int, n: int, k: int) -> float:
        memory = 2 * (n * k + m * (n + k)) / (BANDWIDTH * self.bandwidth_eff)
        compute = 2 * m * n * k / (PEAK * self.flops_eff)
        p = self.rest["gemm.p"]
        seconds: float = self.rest["gemm.t0_s"] + (memory**p + compute**p) ** (1 / p)
        return seconds

    def decode_s(self, requests: int, k: int, context: float, prompts: int = 0, prompt: int = 0) -> float:
        """GPU and sampler seconds of a step: ``requests`` verify k drafts each, ``prompts`` prefill."""
        rest, tokens = self.rest, requests * (k + 1)
        everything = tokens + prompts * prompt
        gpu = self.matrices_s(everything)
        if tokens + prompts:
            gpu += self._matrix_s(tokens + prompts, VOCAB, HIDDEN)
        padded = next((size for size in GRAPHS if size >= everything), everything)
        traffic = 2 * (8 * HIDDEN + 3 * MLP + 2 * (HEADS + KV_HEADS) * HEAD_DIM) * padded
        gpu += LAYERS * (rest["elementwise.t0_s"] + traffic / (BANDWIDTH * rest["elementwise.bandwidth_eff"]))
        gpu += LAYERS * self._attention_s(requests, tokens, context)
        values = 4 * HEAD_DIM * prompts * prompt * (HEADS + KV_HEADS)
        flops = 4 * HEADS * HEAD_DIM * prompts * prompt**2 / 2
        gpu += LAYERS * (
            values / (BANDWIDTH * rest["attention.prefill_bandwidth_eff"])
            + flops / (PEAK * rest["attention.flops_eff"])
        )
        kind = "sampler.verify_" if k else "sampler."
        logits = (tokens + prompts) * VOCAB / (BANDWIDTH * rest["elementwise.bandwidth_eff"])
        return gpu + rest[f"{kind}step_s"] + logits * rest[f"{kind}bytes_per_logit"]

    def _attention_s(self, requests: int, tokens: int, context: float) -> float:
        rest = self.rest
        tiles = rest["attention.tile_s"] * requests * KV_HEADS
        moved = requests * context * 4 * KV_HEADS * HEAD_DIM + tokens * 4 * HEADS * HEAD_DIM
        memory = moved / (BANDWIDTH * rest["attention.bandwidth_eff"])
        p = rest["attention.p"]
        seconds: float = rest["attention.t0_s"] + (tiles**p + memory**p) ** (1 / p)
        return seconds

    def plain_s(self, requests: int, context: float, prompts: int = 0, prompt: int = 0) -> float:
        """Without speculation: the host is hidden but for its gap."""
        return self.decode_s(requests, 0, context, prompts, prompt) + self.rest["host.exposed_s"]

    def ngram_s(self, requests: int, k: int, context: float, prompts: int = 0, prompt: int = 0) -> float:
        """Drafts looked up on the host, which then hides nothing."""
        rest, all_requests = self.rest, requests + prompts
        lookup = all_requests * rest["host.lookup_request_s"]
        lookup += (requests * context + prompts * prompt) * rest["host.lookup_token_s"]
        gpu = self.decode_s(requests, k, context, prompts, prompt)
        return gpu + lookup + self.step_s + all_requests * self.request_s

    def eagle_s(self, requests: int, k: int, context: float) -> float:
        """K passes of a head, bound by the host at small batches."""
        own = k * self.pass_s + requests * self.rest["host.verify_request_s"] + self.rest["host.exposed_s"]
        return self.decode_s(requests, k, context) + own

    def closed_loop_s(self, clients: int, k: int, length: float, prompt: int, output: int) -> float:
        """Mean step of a request that decodes while each other client prefills with chance 1 / steps."""
        chance = 1 / (1 + (output - 1) / length)
        mean = 0.0
        for prompts in range(clients):
            share = comb(clients - 1, prompts) * chance**prompts * (1 - chance) ** (clients - 1 - prompts)
            given = (clients - prompts, prompt + output / 2, prompts, prompt)
            seconds = self.ngram_s(given[0], k, *given[1:]) if k else self.plain_s(given[0], *given[1:])
            mean += share * seconds
        return mean
