"""How many tokens of KV cache fit beside the weights."""

from __future__ import annotations

from kplan.errors import InfeasibleError, InputError
from kplan.profiles import Decoder, Drafter, Dtype, Hardware, Model

RESERVE_BYTES = 1.5e9
"""Assumed: CUDA context, allocator slack and captured graphs of one process."""

TP_CHOICES = (1, 2, 4, 8)


def kv_capacity_tokens(
    hardware: Hardware,
    model: Model,
    drafter: Drafter | None,
    tp: int,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
) -> int:
    """Tokens of KV cache that one replica holds (all ranks hold the same tokens).

    Raises InfeasibleError, naming a tensor-parallel size that fits, when weights leave no room.
    """
    free = _free_bytes(hardware, model, drafter, tp, gpu_memory_utilization, max_num_batched_tokens)
    per_token = model.kv_bytes_per_token(tp) + (drafter.kv_bytes_per_token(tp) if drafter else 0.0)
    if free < per_token:
        fitting = [
            n
            for n in TP_CHOICES
            if n > tp
            and _splits(model, drafter, n)
            and _free_bytes(hardware, model, drafter, n, gpu_memory_utilization, max_num_batched_tokens) > 0
        ]
        fix = f"--tp {fitting[0]} fits" if fitting else "no tensor-parallel size up to 8 fits"
        offered = hardware.memory_bytes.value * gpu_memory_utilization
        raise InfeasibleError(
            f"{model.name} needs {(offered - free) / 1e9:.1f} GB per GPU at TP {tp} before any KV cache "
            f"({model.weight_bytes(tp) / 1e9:.1f} GB of weights, the rest drafter, activations and reserve), "
            f"{hardware.name} offers {offered / 1e9:.1f} GB at memory share {gpu_memory_utilization:g}; {fix}"
        )
    return int(free // per_token)


def _free_bytes(
    hardware: Hardware,
    model: Model,
    drafter: Drafter | None,
    tp: int,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
) -> float:
    activations = max_num_batched_tokens * Dtype.BF16.bytes * _activation_values(model.decoder, tp)
    weights = model.weight_bytes(tp) + (drafter.weight_bytes(tp) if drafter else 0.0)
    budget = hardware.memory_bytes.value * gpu_memory_utilization
    return budget - weights - activations - RESERVE_BYTES


def _activation_values(decoder: Decoder, tp: int) -> float:
    """Peak numbers per token of a full step: four residual-wide buffers, and the larger of attention and MLP.

    An MLP holds gate, up and their product; a routed one those of every active and shared expert, and the
    outputs that are summed. MLA holds queries, expanded keys and values, and its outputs.
    """
    widest = 3 * decoder.intermediate / tp
    if (moe := decoder.moe) is not None:
        experts = 3 * (moe.active * moe.intermediate + moe.shared_intermediate) / tp
        routed = experts + moe.active * decoder.hidden
        widest = max(widest, routed) if moe.dense_layers else routed
    if (mla := decoder.latent) is not None:
        widest = max(widest, 2 * decoder.heads / tp * (mla.nope_dim + mla.rope_dim + mla.v_dim))
    return widest + 4 * decoder.hidden


def _splits(model: Model, drafter: Drafter | None, tp: int) -> bool:
    try:
        for decoder in (model.decoder, drafter.decoder if drafter else None):
            if decoder is not None:
                decoder.check_tp(tp)
    except InputError:
        return False
    return True
