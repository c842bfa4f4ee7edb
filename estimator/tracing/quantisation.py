"""Number format of stored weights from the `quantization_config` of a configuration: a format that is known, or a refusal by name.

Sources: the documentation of Transformers (quantisation), compressed-tensors and TensorRT Model Optimizer for names and fields.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from estimator.vocabulary.errors import WorkloadError

WEIGHT_ONLY: Final = {4: "int4_wo", 8: "int8_wo"}
"""Formats of weights that are widened in registers, by their bits."""

STAYS: Final = ("lm_head", "embed", "norm", "router", "*.gate")
"""Modules that stay in 16 bits whether a list names them or not: head, embeddings, norms, routers of experts."""


def stored_format(model: str, stored: Mapping[str, Any]) -> str:
    """Precision of the layers of a quantised checkpoint, "" of one that is not.  Raises WorkloadError for a method without a format."""
    if not stored:
        return ""
    method = str(stored.get("quant_method", stored.get("quant_algo", "")))
    match method.lower():
        case "fp8" | "fbgemm_fp8" if stored.get("weight_block_size"):
            found = "fp8_block" if list(stored["weight_block_size"]) == [128, 128] else None
        case "fp8" | "fbgemm_fp8":
            found = "fp8_static" if stored.get("activation_scheme") == "static" else "fp8"
        case "modelopt":
            found = {"FP8": "fp8_static", "NVFP4": "nvfp4"}.get(str(stored.get("quant_algo")).upper())
        case "gptq" | "awq" | "auto-round":
            found = WEIGHT_ONLY.get(stored.get("bits", stored.get("w_bit", 0)))
        case "compressed-tensors":
            found = _compressed(list(stored.get("config_groups", {}).values()))
        case _:
            found = None
    if found is None:
        raise WorkloadError(
            f"{model}: its quantization_config (quant_method {method!r:.60}) has no format that is modelled; known: fp8 (dynamic, static, "
            "blocks of 128 × 128), modelopt (FP8, NVFP4), gptq, awq, auto-round (4, 8 bit), compressed-tensors with one group of layers; "
            "--precision bf16 takes the model without it"
        )
    return found


def _compressed(groups: list[Mapping[str, Any]]) -> str | None:
    """Format of the one group of compressed-tensors; None for several groups and for other formats."""
    if len(groups) != 1 or not isinstance(groups[0].get("weights"), Mapping):
        return None
    weights, inputs = groups[0]["weights"], groups[0].get("input_activations")
    kind = weights.get("type"), weights.get("num_bits")
    if not inputs:
        return WEIGHT_ONLY.get(kind[1]) if kind[0] == "int" else None
    if (inputs.get("type"), inputs.get("num_bits")) != kind:
        return None
    if kind == ("float", 8):
        return "fp8_block" if weights.get("strategy") == "block" else "fp8" if inputs.get("dynamic") else "fp8_static"
    return {("int", 8): "int8", ("float", 4): "nvfp4"}.get(kind)


def stays_wide(name: str, stored: Mapping[str, Any]) -> bool:
    """Whether a module keeps its 16 bits: STAYS, and what the configuration names (`re:` starts a regular expression)."""
    listed = (stored.get(key) or () for key in ("modules_to_not_convert", "ignore", "exclude_modules"))
    names: Collection[str] = [*STAYS, *(str(one) for part in listed for one in part)]
    return any(_matches(name, pattern) for pattern in names)


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    if "*" in pattern:
        return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None
    return pattern in name
