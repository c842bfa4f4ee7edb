"""Recording of operations that reach the framework's dispatcher, in plain terms.

PyTorch is an argument: only `estimator.tracing.torch_trace` imports it.  What would differ from a GPU is corrected here:

    fused attention   the meta device would decompose it; it is recorded as one call
    RMS norm          has one kernel on a GPU; the meta device would decompose it
    dropout           has one kernel on a GPU; the meta device would decompose it
    convolution       its result is channels last on a GPU if image or weight is; the meta device forgets that
    experts           grouped products of all floating-point types run on a GPU, only those of bf16 on the meta device
    compositions      a GPU has no kernel of their own; they are recorded as the operations they consist of, also in inference_mode
    questions         `.item()` has no value without content; the values for a mask of ones are returned, all else is refused
"""

import inspect
import math
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final
from unittest.mock import patch

from estimator.tracing.calls import ATTENTION, ATTENTION_BACKWARD, Call, Numbers, Place, Tensor
from estimator.vocabulary.errors import WorkloadError

Placed = tuple[Any, ...]
"""Arguments of PyTorch by position."""
Named = dict[str, Any]
"""Arguments or functions of PyTorch by name."""

ANSWERS: Final = {"aten.all": True, "aten._is_all_true": True, "aten.eq(aten.sum)": True, "aten.any": False}
"""Results of operations for a mask without padding and for valid numbers."""

CONVOLUTION: Final = "aten.convolution"
LAYER_NORM: Final = "aten.native_layer_norm"
RMS_NORM: Final = "aten._fused_rms_norm"
GROUPED: Final = "aten._grouped_mm"
"""Grouped product: rows are distributed over several matrices."""


FUSED_TYPES: Final = frozenset({"bfloat16", "float16", "float32"})
"""Number formats of a fused attention kernel.  Source: ATen, native/transformers/cuda/sdp_utils.cpp."""


@dataclass(slots=True)
class AttentionCalls:
    """Treatment of scaled_dot_product_attention calls in a trace, and whether any is fused.

    form      "flash": all fused; "eager": none fused; "": fused if a GPU fuses such tensors
    window    window of sliding attention [token], 0 without one
    """

    form: str
    window: int = 0
    fused: bool = False

    def fuses(self, tensors: tuple[Tensor, ...], allowed: bool) -> bool:
        """Whether to record a call on query, key and value as one kernel; allowed: as the code that calls it says."""
        # Its tensors have four axes: [batch, head, token, element].
        taken = all(tensor.dtype in FUSED_TYPES and len(tensor.shape) == 4 for tensor in tensors)
        fused = self.form == "flash" or (taken and allowed and not self.form)
        self.fused |= fused
        return fused


@contextmanager
def recording(torch: Any, calls: list[Call], attention: AttentionCalls, held: "Held") -> Iterator[None]:
    """Append every dispatched operation on meta tensors to `calls`, and count its new tensors in `held`."""
    # The fast path of PyTorch's encoders makes nested tensors, with as many tokens as a mask shows.
    plain = patch.object(torch.backends.mha, "_is_fastpath_enabled", False)
    with plain, _function_mode(torch, calls, attention, held), _dispatch_mode(torch, calls, held):
        yield


def _dispatch_mode(torch: Any, calls: list[Call], held: "Held") -> Any:
    # Source: ATen, native/transformers/attention.cpp, ReduceOps.cpp, Loss.cpp.
    composed = {
        "aten._safe_softmax": lambda x, dim, dtype=None: torch.where(x.eq(-math.inf).all(dim, True), 0.0, x.softmax(dim, dtype=dtype)),
        "aten.logsumexp": lambda x, dim, keepdim=False: (x - x.amax(dim, True)).exp_().sum(dim, keepdim).log_(),
        "aten.binary_cross_entropy_with_logits": torch._decomp.decompositions.binary_cross_entropy_with_logits,
    }

    def dispatch(_mode: Any, function: Any, _types: Any, arguments: Placed = (), keywords: Named | None = None) -> Any:
        keywords = keywords or {}
        name = function._schema.name.replace("::", ".")
        if name == "aten._local_scalar_dense" and arguments[0].device.type == "meta":
            return _answer(getattr(arguments[0], "_asked", ""))
        if name in composed or not function.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU):
            with _mode:
                result = composed.get(name, function.decompose)(*arguments, **keywords)
            if result is not NotImplemented:
                return result
        result = _grouped(torch, function, arguments, keywords) if name == GROUPED else function(*arguments, **keywords)
        if name == CONVOLUTION:
            result = _laid_out(torch, arguments[:2], result)
        outputs = tensors_in(torch, result)
        held.add(outputs)
        asked = _origin_word(name, arguments)
        for tensor in outputs:
            if tensor.dtype == torch.bool or tensor.ndim == 0:
                tensor._asked = asked
        if not _is_view(function):
            call = _call(torch, function, name, arguments, keywords, outputs, held)
            if call is not None:
                calls.append(call)
        return result

    return type("Recorder", (torch.utils._python_dispatch.TorchDispatchMode,), {"__torch_dispatch__": dispatch})()


def _grouped(torch: Any, function: Any, arguments: Placed, keywords: Named) -> Any:
    """A grouped product on the meta device, with the shapes of bf16 and the type of its own tensors."""
    own = arguments[0].dtype
    if arguments[0].device.type != "meta" or own == torch.bfloat16:
        return function(*arguments, **keywords)
    shaped = [value.to(torch.bfloat16) if isinstance(value, torch.Tensor) and value.dtype == own else value for value in arguments]
    return function(*shaped, **keywords).to(own)


def _laid_out(torch: Any, image_and_weight: Iterable[Any], result: Any) -> Any:
    """The result of a convolution in the layout that a GPU gives it.

    Source: ATen, native/ConvUtils.h, cudnn_conv_suggest_memory_format.
    """
    last = torch.channels_last
    if result.ndim == 4 and any(one.is_contiguous(memory_format=last) and not one.is_contiguous() for one in image_and_weight):
        return result.contiguous(memory_format=last)
    return result


def _origin_word(name: str, arguments: Placed) -> str:
    """The operation that made a tensor, with the operation of its input: "aten.eq(aten.sum)"."""
    before = str(getattr(arguments[0], "_asked", "")) if arguments else ""
    return f"{name}({before.partition('(')[0]})" if before and name == "aten.eq" else name


def _answer(asked: str) -> bool:
    """The value of a tensor without content, if its operations determine it."""
    if asked in ANSWERS:
        return ANSWERS[asked]
    what = f" (the result of {asked})" if asked else ""
    raise WorkloadError(
        f"the model decides by the content of a tensor{what}, which a trace without data cannot know; "
        "trace a part of it that does not, as MODULE:CALLABLE"
    )


def _is_view(function: Any) -> bool:
    """Whether an operation gives its input another shape and launches nothing."""
    returns = function._schema.returns
    return bool(returns) and all(item.alias_info is not None and not item.alias_info.is_write for item in returns)


def tensors_in(torch: Any, value: Any, depth: int = 5) -> list[Any]:
    """Tensors in a value, in its lists and mappings, and in the attributes of objects."""
    if isinstance(value, torch.Tensor):
        return [value]
    if depth == 0:
        return []
    parts = value if isinstance(value, list | tuple) else (value if isinstance(value, dict) else getattr(value, "__dict__", {})).values()
    return [tensor for part in parts for tensor in tensors_in(torch, part, depth - 1)]


def _call(torch: Any, function: Any, name: str, arguments: Placed, keywords: Named, outputs: list[Any], held: "Held") -> Call | None:
    """A call in plain terms; None if none of its tensors is on the meta device: such a call runs on the host."""
    named = [(item.name, value) for item, value in zip(function._schema.arguments, arguments, strict=False)]
    named += [(key, value) for key, value in keywords.items() if key != "out"]
    inputs: list[tuple[str, Any]] = []
    numbers: list[tuple[str, tuple[int, ...]]] = []
    for key, value in named:
        inputs += [(key, tensor) for tensor in tensors_in(torch, value) if tensor.device.type == "meta"]
        several = value if isinstance(value, list | tuple) else [value]
        if several and all(isinstance(item, int) for item in several):
            numbers.append((key, tuple(map(int, several))))
    pointwise = torch.Tag.pointwise in function.tags
    if pointwise or "._foreach_" in name:  # such a kernel reads once what it is given twice: x * x, the squares of gradients
        inputs = list({id(tensor): (key, tensor) for key, tensor in inputs}.values())
    outputs = [tensor for tensor in outputs if tensor.device.type == "meta"]
    if not (inputs or outputs):
        return None
    return Call(
        name=name,
        inputs=tuple((key, _plain(tensor)) for key, tensor in inputs),
        outputs=tuple(map(_plain, outputs)),
        numbers=tuple(numbers),
        pointwise=pointwise,
        read=held.places(tensor for _, tensor in inputs),
        written=held.places(outputs),
    )


def _plain(tensor: Any) -> Tensor:
    return Tensor(shape=tuple(tensor.shape), strides=tuple(tensor.stride()), dtype=str(tensor.dtype).removeprefix("torch."))


def _function_mode(torch: Any, calls: list[Call], met: AttentionCalls, held: "Held") -> Any:
    functional = torch.nn.functional
    apart = functional.scaled_dot_product_attention

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **options: Any
    ) -> Any:
        told = torch.backends.cuda  # by torch.nn.attention.sdpa_kernel, too
        allowed = told.flash_sdp_enabled() or told.mem_efficient_sdp_enabled() or not told.math_sdp_enabled()
        if not met.fuses(tuple(map(_plain, (query, key, value))), allowed):
            return apart(query, key, value, attn_mask, dropout_p, is_causal, **options)
        if is_causal:  # each query sees the keys up to its own place, counted from the first
            key, value = (tensor[..., : query.shape[-2], :] for tensor in (key, value))
        # A mask argument has no content: it is assumed to be the model's window if that is shorter than the context, else to hide
        # nothing.
        windowed = attn_mask is not None and 0 < met.window < key.shape[-2]
        numbers = (("causal", (int(is_causal or windowed),)), ("window", (met.window * windowed,)))
        return _attention(torch, calls, (query, key, value), numbers, held)

    def dropout(tensor: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return torch.native_dropout(tensor, p, True)[0] if training and p > 0.0 else tensor

    def rms_norm(tensor: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
        if weight is not None and weight.dtype != tensor.dtype:  # a GPU runs these one by one, too
            return torch.rms_norm(tensor, normalized_shape, weight, eps)
        # In the kernel of the layer norm (layer_norm_kernel.cu, rms_norm), so its shapes and gradients are right.
        before, result = len(calls), functional.layer_norm(tensor, normalized_shape, weight)
        calls[before:] = [replace(call, name=RMS_NORM) if call.name == LAYER_NORM else call for call in calls[before:]]
        return result

    inside: Named = {"dropout": dropout, "scaled_dot_product_attention": attention}
    if hasattr(torch, "_fused_rms_norm"):  # earlier versions have no such kernel
        inside["rms_norm"] = rms_norm
    stand_ins = {getattr(functional, name): stand_in for name, stand_in in inside.items()}

    def intercept(_mode: Any, function: Any, _types: Any, arguments: Placed = (), keywords: Named | None = None) -> Any:
        keywords = keywords or {}
        if function in stand_ins:
            return stand_ins[function](*arguments, **keywords)
        own = inspect.isfunction(function)  # whose calls do not reach this mode
        with patch.multiple(functional, **inside) if own else nullcontext():
            return function(*arguments, **keywords)

    return type("Interceptor", (torch.overrides.TorchFunctionMode,), {"__torch_function__": intercept})()


def _attention(torch: Any, calls: list[Call], tensors: Placed, numbers: Numbers, held: "Held") -> Any:
    """Fused attention as one call, with a gradient of one call."""
    inputs, read = tuple(zip(("query", "key", "value"), map(_plain, tensors), strict=True)), held.places(tensors)

    # A class refers to itself, so only the garbage collector frees it: it must not hold tensors, which would be counted until then.
    def note(name: str, outputs: Placed, more: Placed = ()) -> None:
        shapes = tuple(_plain(tensor) for tensor in outputs)
        sources = (*read, *held.places(more))
        calls.append(Call(name=name, inputs=inputs, outputs=shapes, numbers=numbers, read=sources, written=held.places(outputs)))

    def forward(context: Any, *tensors: Any) -> Any:
        context.save_for_backward(*tensors)
        first, *_, last = tensors
        *leading, heads, tokens, _ = first.shape
        result = first.new_empty((*leading, tokens, heads, last.shape[-1])).transpose(-3, -2)
        note(ATTENTION, (result,))
        return result

    def backward(context: Any, gradient: Any) -> Any:
        gradients = tuple(tensor.new_empty(tensor.shape) for tensor in context.saved_tensors)
        note(ATTENTION_BACKWARD, gradients, (gradient,))
        return gradients

    fused: Any = type("FusedAttention", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
    return fused.apply(*tensors)


# Memory ---------------------------------------------------------------------------------------------------------------


class Held:
    """Bytes of the live storages: `now_byte` at present, `most_byte` at the peak.

    A tensor of the meta device has a storage of the same size as on a GPU, and Python frees it at the same place.
    Workspaces of libraries, the driver's context and the rounding of an allocator are not included.
    """

    def __init__(self) -> None:
        self.now_byte = 0
        self.most_byte = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._numbers: dict[int, int] = {}
        self._next = count(1)

    def add(self, tensors: Iterable[Any]) -> int:
        """Count new storages of these tensors on the meta device until they are freed; returns their size [byte]."""
        before = self.now_byte
        for tensor in tensors:
            storage = tensor.untyped_storage() if tensor.device.type == "meta" else None
            if storage is None or storage._cdata in self._alive:
                continue
            size = storage.nbytes()
            self._alive[storage._cdata] = weakref.ref(storage, partial(self._gone, storage._cdata, size))
            self._numbers[storage._cdata] = next(self._next)
            self.now_byte += size
        self.most_byte = max(self.most_byte, self.now_byte)
        return self.now_byte - before

    def places(self, tensors: Iterable[Any]) -> tuple[Place, ...]:
        """Places of the tensors; number 0: of an unknown storage."""
        found = [(tensor, tensor.untyped_storage()) for tensor in tensors]
        return tuple(Place(self._numbers.get(one._cdata, 0), tensor.storage_offset(), one.nbytes()) for tensor, one in found)

    def _gone(self, key: int, size: int, _reference: "weakref.ref[Any]") -> None:
        del self._alive[key], self._numbers[key]
        self.now_byte -= size
