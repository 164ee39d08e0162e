"""Two operators that torchvision registers at import, for an environment where it cannot (CPU torch)."""

from __future__ import annotations

import torch


def define() -> torch.library.Library:
    """Declare them, without bodies: SGLang's imports only need them to exist. Keep the result alive."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
