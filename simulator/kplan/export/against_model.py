"""What an engine refuses for the sake of the model that the config names."""

from __future__ import annotations

from dataclasses import replace

from kplan.export.current import CurrentConfig, Finding, Severity
from kplan.export.served import ServedModel
from kplan.policy import TablePolicy
from kplan.registry import parse_policy

_LARGEST_BATCH = 1024


def against_model(config: CurrentConfig, model: ServedModel) -> CurrentConfig:
    """The config with what its engine finds once it knows the model."""
    found = []
    asked = config.settings.get("max_model_len")
    if asked is not None and model.max_context is not None and asked > model.max_context:
        found.append(f"a context of {asked} is above the model's {model.max_context}")
    if config.proposer == "mtp":
        layers, k = model.mtp_layers, largest_k(config.policy)
        if layers == 0:
            found.append(f"{model.hf_id} has no MTP layers to draft with")
        elif config.engine == "vllm" and k > layers and k % layers:
            found.append(f"num_speculative_tokens {k} must be a multiple of the {layers} MTP layers")
    refused = tuple(Finding(Severity.REFUSED, text) for text in found)
    return replace(config, findings=(*refused, *config.findings))


def largest_k(policy: str) -> int:
    """The largest K that a table or one K drafts; 0 for a policy that is neither."""
    built = parse_policy(policy).build()
    return int(built.table(_LARGEST_BATCH)[1:].max()) if isinstance(built, TablePolicy) else 0
