"""Drive SGLang's own adaptive-steps class with given acceptances (runs in the engine's environment).

Reads one JSON object from stdin: {"config": path or null, "initial": K, "graph_sizes": [...], "steps":
[[batch, [drafts that would be accepted, one per request]], ...]}. Writes the K that the class chose for each
step. A step accepts at most the K it was drafted with, and is observed before the next (no overlap).
"""

from __future__ import annotations

import json
import sys

import torchvision_operators

_OPERATORS = torchvision_operators.define()

from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams  # noqa: E402 - after the operators


def main() -> None:
    """Answer one request."""
    asked = json.load(sys.stdin)
    ladder = AdaptiveSpeculativeParams(asked["initial"], asked["config"])
    ladder.set_cuda_graph_bs(asked["graph_sizes"])
    chosen = []
    for batch, would_accept in asked["steps"]:
        k = ladder.get_steps_for_batch(batch)
        chosen.append(k)
        ladder.on_verify_complete([min(k, accepted) for accepted in would_accept], batch)
    sys.stdout.write("\nCHOSEN " + json.dumps(chosen) + "\n")


if __name__ == "__main__":
    main()
