"""A PyTorch model → Workload, on the meta device: no weights, no GPU, no download.

The model is built from its configuration with tensors that have a shape and no content (`estimator.tracing.building`).
Each operation that reaches the dispatcher is recorded in plain terms (`recording`, `calls`) and then converted to
operators in the order of execution: a call without a kernel is dropped; a call without a rule is kept by name, with its count and its
written elements.
All changes of state are undone when the trace ends.  This is the only file of the package that imports PyTorch.
"""

import importlib
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from estimator.tracing.building import CACHES, Job, configured_job, user_job
from estimator.tracing.calls import Call, Part
from estimator.tracing.fusion import RULE_SET, compiled, without_biases
from estimator.tracing.models import (
    EXPERTS_ALONE,
    NARROW_BASE,
    SIZES,
    TENSOR_TYPES,
    WIDENED,
    WIDENED_BYTE,
    Fields,
    TraceRequest,
    checked_request,
    chosen_format,
    formats,
    load_model_config,
    skipped_modules,
    stays_wide,
    stored_format,
    weight_byte,
)
from estimator.tracing.recording import AttentionCalls, Held, recording, tensors_in
from estimator.tracing.rules import rule_of
from estimator.transforms.rewriting import checked_formats, widened, with_precision
from estimator.transforms.variation import Variant
from estimator.vocabulary.errors import EstimatorError, WorkloadError
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.reader import FaultError
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Footprint, Operator, UnknownOperator, Workload, is_of_convolution, merge_counts

SOFTENED: Final = "float16"
"""Type whose conversion to float32 before a softmax PyTorch does in the softmax kernel.  Source: ATen, SoftMax.cpp."""


@frozen
class Lowered:
    """Operators with their counts, merged, in first-seen order; operations without a family."""

    operators: tuple[Operator, ...]
    counts: tuple[float, ...]
    unknown: tuple[UnknownOperator, ...]


def lower_calls(calls: Iterable[Call], *, tf32: Collection[str] = (), fused: bool = False) -> Lowered:
    """Operators from calls in the order of execution.

    `tf32`: families whose products of fp32 tensors run on tensor cores; `fused`: kernels of a compiled model (`estimator.tracing.fusion`).
    Raises WorkloadError for tensors of a type without a precision.
    """
    listed: list[list[Part]] = []
    unknown: Counter[tuple[str, float]] = Counter()
    launched = cache(_parts)
    merged = _merged_softmax(list(without_biases(calls) if fused else calls))
    for call in merged:
        found = launched(call)
        if found is None:
            unknown[call.name, float(sum(tensor.elements for tensor in call.outputs))] += 1
        listed.append(found or [])
    parts = compiled(merged, listed) if fused else [one for found in listed for one in found]
    parts = [one for one in parts if "conv" in tf32 or (one.operator.operator, one.operator.precision) != ("layout", "fp32")]
    operators, counts = merge_counts(*zip(*parts, strict=True)) if parts else ((), ())
    return Lowered(
        operators=tuple(_on_tensor_cores(one, tf32) for one in operators),
        counts=counts,
        unknown=tuple(UnknownOperator(name=name, count=count, elements=elements) for (name, elements), count in unknown.items()),
    )


def _on_tensor_cores(operator: Operator, families: Collection[str]) -> Operator:
    """The operator in tf32 if it is one of these families in fp32."""
    taken = ("conv" if is_of_convolution(operator) else operator.family) in families and operator.precision == "fp32"
    return replace(operator, precision="tf32", cuda_cores=False) if taken else operator


def _merged_softmax(calls: list[Call]) -> list[Call]:
    """Calls in which conversions to fp32 directly before a softmax are merged into the softmax, as PyTorch does."""
    merged: list[Call] = []
    for call in calls:
        before = merged[-1] if merged else None
        if before is not None and call.name == "aten._softmax" and before.name == "aten._to_copy":
            source = before.inputs[0][1]
            if source.dtype == SOFTENED and before.output == call.inputs[0][1] and before.output.dtype == "float32":
                merged[-1] = replace(call, inputs=(("self", source),), read=before.read)
                continue
        merged.append(call)
    return merged


def _parts(call: Call) -> list[Part] | None:
    """The kernels of a call; None without a rule."""
    rule = rule_of(call)
    if not any(tensor.elements for tensor in call.outputs or [tensor for _, tensor in call.inputs]):
        return []
    return None if rule is None else rule(call)


REMEDY: Final = "pip install 'wattprint[torch]'; language models need none as engines serve them: estimate --runtime serving, estimate llm"

OVERSTATED: Final = "recurrent layers are taken step by step; cuDNN runs their steps in few kernels, so that time and energy are overstated"

GROUPED: Final = (
    "grouped convolutions channels last are slower than modelled: RegNets on an RTX 3090 take 1.1 to 1.6 times as long, in training 2 to 5"
)

COMPILED: Final = (
    f"runtime {RULE_SET}: element-wise chains and norms merged as torch.compile merges them, one launch a kernel without CUDA graphs "
    "(--host-launch-us 0: with them)"
)

PARTLY: Final = "functions that torch.compile compiles are traced as written; --runtime compiled merges the kernels of the whole model"

TURNED: Final = "images are channels first: {:.0f} conversions around its convolutions{}"

AUTOCAST: Final = "torch.autocast of its code is not traced: its kernels have the precision of --precision"

ADVICE: Final = {
    ("meta tensor", "Meta tensor", "meta device type", "register_meta"): (
        "a trace has shapes, no values: take out what reads them, quantise by --weights"
    ),
    ("CUDA enabled", "NVIDIA driver", "device meta"): "a trace is on the meta device: take .cuda() and fixed devices out",
    ("Sparse",): "sparse tensors are not traced: make them dense (sparse=False)",
}
"""What to do about messages of PyTorch with any of these words."""

IMAGE_AXES: Final = 4
MATRIX_AXES: Final = 2
"""Axes of a batch of images, and of a layer's weights; those of all experts in one tensor have one more."""

CONFIGURED_ATTENTION: Final = "eager"
"""Default form of attention of models that are built from a configuration."""


def trace_workload(request: TraceRequest) -> Workload:
    """The operators of one forward pass, decoding step or training step.

    Raises WorkloadError for a model that is unknown or cannot be traced, EstimatorError if PyTorch or Transformers is
    not installed.
    """
    return trace_calls(request).workload


def trace_calls(request: TraceRequest, asked: Collection[str] = ()) -> Variant:
    """The workload of `trace_workload` with the sizes that its inputs have, its precision, and its attention, "eager" or "flash".

    Raises the same errors, and WorkloadError for a size of `asked` that the inputs do not have: it would change nothing.
    """
    user_code = ":" in request.model and not Path(request.model).exists()
    config = None if user_code else load_model_config(request.model)
    stored = {} if config is None or request.precision or request.weights else config.quantised
    narrow = _narrow_format(request, stored)
    precision = request.precision or narrow.replace(WIDENED, "")
    if not (precision or narrow or config is None):
        precision = config.precision
    request = checked_request(replace(request, precision=precision))
    torch = _load("torch")
    transformers = None if config is None else _load("transformers")  # sets its own log level, so it must load before that is lowered
    calls: list[Call] = []
    with ExitStack() as stack:
        for context in (redirect_stdout(sys.stderr), _quiet(), _as_workload_errors(request.model)):  # output of a model is no result
            stack.enter_context(context)
        casts = stack.enter_context(patch.object(torch.autocast, "__init__", autospec=True, side_effect=_autocast(torch.autocast.__init__)))
        with patch.object(torch, "compile", wraps=torch.compile) as compiles:
            job = user_job(torch, request) if config is None else configured_job(torch, transformers, request, config)
        for size in asked:
            if size not in job.sizes:
                raise WorkloadError(f"{request.model}: its inputs have no {size} to choose; leave --{size} out")
        form = request.attention or ("" if config is None else CONFIGURED_ATTENTION)
        request = replace(request, attention=form, runtime=request.runtime or ("compiled" if job.compiled else "eager"))
        job = _laid_out(torch, request, job)
        if compiles.called or job.compiled:  # a module imported before has compiled its own
            stack.enter_context(torch.compiler.set_stance("force_eager"))  # its own compiler would hide the operations
        run, moments = _runner(torch, request, job)
        held = Held()
        kept = [  # without a name for the cache's tensors, which would keep them alive
            held.add([*job.model.parameters(), *job.model.buffers()]),
            held.add(moments),
            held.add(tensors_in(torch, [job.named.get(name) for name in CACHES])),
        ]
        held.add(tensors_in(torch, [job.placed, job.named]))
        met = AttentionCalls(form=request.attention, window=job.window)
        with recording(torch, calls, met, held):
            run()
    footprint = Footprint(weights_byte=kept[0], optimizer_byte=kept[1], cache_byte=kept[2], passing_byte=held.most_byte - sum(kept))
    request = replace(request, attention=request.attention or ("flash" if met.fused else "eager"))
    untraced = {
        AUTOCAST: any(False not in (*one.args, one.kwargs.get("enabled")) for one in casts.call_args_list),
        PARTLY: compiles.called and not job.compiled and request.runtime == "eager",
    }
    with _as_workload_errors(request.model):
        workload = _workload(torch, request, job, calls, footprint, untraced)
    if narrow and narrow not in TENSOR_TYPES:
        workload = _narrowed(torch, workload, narrow, job.model, stored)
    elif request.precision not in TENSOR_TYPES:
        workload = with_precision(workload, request.precision)
    elif config is not None and config.quantised:
        told = f"its weights are stored otherwise (quantization_config), and taken in {request.precision} as asked"
        workload = replace(workload, notes=(*workload.notes, told))
    sizes = {name: job.sizes.get(name, 0) for name in SIZES}
    tokens = sizes["batch"] * (1 if request.phase == "decode" else sizes["sequence"])
    return Variant(workload=checked_formats(workload), tokens=tokens, precision=request.precision, attention=request.attention, **sizes)


def _laid_out(torch: Any, request: TraceRequest, job: Job) -> Job:
    """The job with its convolutions and images channels last, if so asked."""
    if not request.channels_last:
        return job
    if not any(isinstance(part, (torch.nn.Conv2d, torch.nn.ConvTranspose2d)) for part in job.model.modules()):
        raise WorkloadError(f"{request.model}: has no convolutions over images; leave --channels-last out")
    last = {"memory_format": torch.channels_last}
    job.model.to(**last)
    placed, named = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda one: one.contiguous(**last) if one.ndim == IMAGE_AXES else one, (job.placed, dict(job.named))
    )
    return replace(job, placed=placed, named=named)


def _narrow_format(request: TraceRequest, stored: Fields) -> str:
    """The format of the layers' weights, as asked or as stored; "" if neither says one.  Raises WorkloadError."""
    try:
        if not request.weights:
            skipped_modules(stored)  # so that their faults are refused here
            return stored_format(stored) if stored else ""
        if request.precision:
            raise FaultError("excludes precision: name one of them", "weights")
        return chosen_format(formats().weights, request.weights, "weights")
    except FaultError as fault:
        raise WorkloadError(f"{request.model}: {fault}") from None


def _narrowed(torch: Any, workload: Workload, form: str, model: Any, stored: Fields) -> Workload:
    """The workload with its layers in 8 or 4 bits; those that stay wide, by habit or as `stored` says, do."""
    products = {tuple(sorted(one.shape[2:])) for one in workload.operators if one.operator == "linear"}
    batched = {(one.shape[0], *sorted(one.shape[2:])) for one in workload.operators if one.operator == "bmm"}
    if any(weight.ndim > MATRIX_AXES and (weight.shape[0], *sorted(weight.shape[1:])) in batched for weight in model.parameters()):
        fault = f"experts in one batched product have no known kernel in {form}"
        raise WorkloadError(f"{workload.name}: {fault}; name other weights (--weights bf16)")
    others = (torch.nn.Embedding, torch.nn.EmbeddingBag, torch.nn.modules.conv._ConvNd)
    wide: set[tuple[int, ...]] = set()
    narrow: dict[int, Any] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        axes = weight.ndim  # those of an encoder are held while its decoder runs
        used = tuple(sorted(weight.shape[-2:])) in products or (axes == MATRIX_AXES and name.endswith("weight"))
        if not used or isinstance(model.get_submodule(name.rpartition(".")[0]), others):
            continue
        if axes == MATRIX_AXES and (EXPERTS_ALONE in form or stays_wide(name.removesuffix(".weight"), stored)):
            wide.add(tuple(weight.shape))
        else:
            narrow[id(weight)] = weight
    both = wide & {tuple(weight.shape) for weight in narrow.values()}
    if not narrow:
        raise WorkloadError(f"{workload.name} has no layers or experts that {form} takes; name other weights (--weights bf16)")
    if form == WIDENED and (model.training or any(weight.ndim > MATRIX_AXES for weight in narrow.values())):
        raise WorkloadError(
            f"{workload.name}: experts and training in bitsandbytes have no known kernel; name other weights (--weights bf16)"
        )
    saved = sum(weight.numel() for weight in narrow.values()) * (BYTES_PER_ELEMENT[NARROW_BASE] - weight_byte(form, stored))
    footprint = workload.footprint and replace(workload.footprint, weights_byte=workload.footprint.weights_byte - saved)
    changed = _widened(workload, wide - both) if form == WIDENED else with_precision(workload, form, wide - both)
    convolves = any(map(is_of_convolution, workload.operators))
    notes = (*changed.notes, *(["convolutions stay in 16 bits, as methods for weights leave them"] if convolves else []))
    told = f"{len(both)} shapes of layers that stay in 16 bits are those of layers in {form} too, and taken in {form}"
    return replace(changed, footprint=footprint, notes=notes, warnings=(*changed.warnings, *([told] if both else [])))


def _widened(workload: Workload, wide: Collection[tuple[int, ...]]) -> Workload:
    """The workload with 4-bit weights that are widened before products, other than those of outputs and inputs in `wide`."""
    pairs: list[tuple[Operator, float]] = []
    for one, count in zip(workload.operators, workload.counts, strict=True):
        plain = one.operator != "linear" or one.shape[2:] in wide
        pairs += [(kernel, count) for kernel in ((one,) if plain else widened(one, WIDENED_BYTE))]
    operators, counts = merge_counts(*zip(*pairs, strict=True))
    notes = (*workload.notes, "weights in 4 bits, widened to 16 before products")
    return replace(workload, operators=operators, counts=counts, notes=notes)


def _workload(
    torch: Any, request: TraceRequest, job: Job, calls: list[Call], footprint: Footprint, untraced: Mapping[str, bool]
) -> Workload:
    """The workload of a trace; untraced: further warnings, and whether each holds."""
    fused = request.runtime == "compiled"
    allowed = {"conv": torch.backends.cudnn.allow_tf32, "gemm": torch.backends.cuda.matmul.allow_tf32}
    tf32 = {family for family in ("conv", "gemm", "attention") if request.precision == "tf32" or allowed.get(family)}
    lowered = lower_calls(calls, tf32=tf32, fused=fused)
    if not lowered.operators:
        unknown = ", ".join(one.name for one in lowered.unknown)
        raise WorkloadError(f"{request.model}: launches nothing that is known ({unknown or 'it must work on tensors'})")
    modules = list(job.model.modules())
    grouped = any(isinstance(part, torch.nn.Conv2d) and 1 < part.groups < part.in_channels for part in modules)
    counted = zip(lowered.operators, lowered.counts, strict=True)
    turned = sum(count for one, count in counted if one.operator == "layout" and one.precision != "tf32")
    warnings = {
        OVERSTATED: any(isinstance(part, torch.nn.RNNBase) for part in modules),
        GROUPED: request.channels_last and grouped,
        **untraced,
    }
    notes = {
        f"traced on the meta device with PyTorch {torch.__version__}: {job.title}": True,
        COMPILED: fused,
        TURNED.format(turned, "" if request.channels_last else " (--channels-last: fewer)"): turned > 1.0,
        "no attention was fused: the model has none or writes it out": request.attention == "flash"
        and not any(operator.family == "attention" for operator in lowered.operators),
    }
    return Workload(
        name=request.label(job.sizes),
        operators=lowered.operators,
        counts=lowered.counts,
        model_family=job.family,
        unknown=lowered.unknown,
        warnings=tuple(line for line, holds in warnings.items() if holds),
        notes=tuple(line for line, holds in notes.items() if holds),
        footprint=footprint,
    )


# Environment ----------------------------------------------------------------------------------------------------------


def _load(name: str) -> Any:
    """PyTorch or Transformers.  Raises EstimatorError with the remedy if it is missing or broken."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = "is not installed" if isinstance(error, ModuleNotFoundError) and error.name == name else f"cannot be imported ({error})"
        raise EstimatorError(f"tracing a model needs {name}, which {missing}: {REMEDY}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and log lines of the libraries: they concern the execution of a model, which does not happen."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _as_workload_errors(model: str) -> Iterator[None]:
    """Convert exceptions and exits of a model to a WorkloadError of one line."""
    try:
        yield
    except EstimatorError:
        raise
    except SystemExit as error:
        raise WorkloadError(f"{model}: cannot be traced: its code ends the program (SystemExit: {error})") from error
    except Exception as error:  # from building or running the model: its code or its configuration is the cause
        text = " ".join(str(error).split())[:300]
        advice = "".join(f"; {advice}" for words, advice in ADVICE.items() if any(word in text for word in words))
        raise WorkloadError(f"{model}: cannot be traced: {type(error).__name__}: {text}{advice}") from error


def _autocast(begin: Callable[..., None]) -> Callable[..., None]:
    """The start of an autocast, which PyTorch refuses for the meta device."""
    return lambda one, device_type, *placed, **named: begin(one, device_type.replace("meta", "cuda"), *placed, **named)


# Running --------------------------------------------------------------------------------------------------------------


def _runner(torch: Any, request: TraceRequest, job: Job) -> tuple[Callable[[], Any], list[Any]]:
    """The function to record, and the tensors of its optimizer."""
    model, master, run = job.model, request.master, partial(job.model, *job.placed, **job.named)
    if request.phase != "train":
        model.eval()

        def forward() -> None:
            with torch.no_grad():
                run()

        return forward, []
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise WorkloadError(f"{request.model}: has no weights to train; choose --phase prefill")
    kept = [parameter.detach().float() for parameter in parameters] if master else parameters
    optimizer = torch.optim.AdamW(kept, foreach=True)
    for parameter in kept:  # one step, so that its moments exist
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    def step() -> None:
        with torch.enable_grad():
            _loss(torch, run()).backward()
        if master:
            for one, parameter in zip(kept, parameters, strict=True):
                one.grad = None if parameter.grad is None else parameter.grad.float()
        optimizer.step()
        if master:
            with torch.no_grad():
                torch._foreach_copy_(parameters, kept)

    return step, tensors_in(torch, [kept if master else [], list(optimizer.state.values())])


def _loss(torch: Any, result: Any) -> Any:
    """The model's own loss, or the sum of its results."""
    loss = result.get("loss") if isinstance(result, dict) else getattr(result, "loss", None)
    if loss is not None:
        return loss.sum() if loss.ndim else loss
    results = [tensor for tensor in tensors_in(torch, result) if tensor.requires_grad]
    if not results:
        raise WorkloadError("the model returns nothing that depends on its weights; there is no gradient to compute")
    return sum(tensor.sum() for tensor in results)
