"""In which format a checkpoint stores the matrices of its layers, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping

from kplan.errors import InputError
from kplan.profiles.dtype import Dtype
from kplan.profiles.hf_fields import Fields

_STORED: Mapping[str, Dtype] = {
    "": Dtype.BF16,
    "bfloat16": Dtype.BF16,
    "float16": Dtype.BF16,  # as wide
    "half": Dtype.BF16,
    "float32": Dtype.BF16,  # engines load it in 16 bits
    "auto": Dtype.BF16,
    "float8_e4m3fn": Dtype.FP8,
}
_METHODS: Mapping[str, Dtype] = {"fp8": Dtype.FP8, "fbgemm_fp8": Dtype.FP8, "mxfp4": Dtype.INT4}
_BY_BITS = ("awq", "gptq", "auto-round", "intel/auto-round")


def weight_format(whole: Fields, language: Fields) -> tuple[Dtype, str]:
    """The format of the layers' matrices, and a note where it stands for one that is close.

    Args:
        whole: the file.
        language: its language model; the same object when it has no other part.

    Raises:
        InputError: a format that is not priced.
    """
    quantized = whole.nested("quantization_config") or language.nested("quantization_config")
    if quantized is None:
        owner = next((one for one in (whole, language) if one.first("dtype", "torch_dtype")), whole)
        stored = owner.text("dtype", "torch_dtype").removeprefix("torch.")
        if stored not in _STORED:
            raise owner.fault("dtype", stored, f"known: {', '.join(filter(None, _STORED))}")
        return _STORED[stored], ""
    method = quantized.text("quant_method").lower()
    if method in _METHODS:
        note = (
            "mxfp4 of the experts taken as int4 of every layer's matrices (as wide)"
            if method == "mxfp4"
            else ""
        )
        return _METHODS[method], note
    if method in _BY_BITS:
        return _by_bits(quantized, quantized.count("bits", "w_bit", most=64), "int")
    if method == "bitsandbytes":
        return _by_bits(quantized, 4 if quantized.flag("load_in_4bit", False) else 8, "int")
    if method == "modelopt" and quantized.text("quant_algo").upper() == "FP8":
        return Dtype.FP8, ""
    if method == "compressed-tensors":
        weights = _first_group(quantized)
        return _by_bits(weights, weights.count("num_bits", most=64), weights.text("type"))
    raise _unpriced(quantized, "quant_method", method)


def _first_group(quantized: Fields) -> Fields:
    """The weights of the first group of layers that compressed-tensors describes."""
    groups = quantized.nested("config_groups")
    names = sorted(groups.values) if groups is not None else []
    group = groups.nested(names[0]) if groups is not None and names else None
    weights = group.nested("weights") if group is not None else None
    if weights is None:
        raise quantized.fault("config_groups", "no weights", "must say how weights are stored")
    return weights


def _by_bits(fields: Fields, bits: int, kind: str) -> tuple[Dtype, str]:
    if bits == 8 and kind == "float":
        return Dtype.FP8, ""
    if bits == 4 and kind == "int":
        return Dtype.INT4, ""
    raise _unpriced(fields, "bits", f"{bits}-bit {kind}")


def _unpriced(fields: Fields, key: str, value: str) -> InputError:
    return fields.fault(
        key,
        value,
        "weights are priced as bf16, fp8 or int4",
        "take quantization_config out of a copy and give --quantization the nearest of these",
    )
