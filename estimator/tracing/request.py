"""Request for a trace: a model, its inputs, one phase of its work."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, field, replace
from typing import Annotated, Final

from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, canonical_precision
from estimator.vocabulary.reader import FaultError, Span, Words, read
from estimator.vocabulary.values import frozen

PHASES: Final = ("prefill", "decode", "train")
"""One forward pass over all tokens; one new token for each sequence, with a cache; forward, backward and a step of AdamW."""

ATTENTION_FORMS: Final = ("eager", "flash")
RUNTIMES: Final = ("eager", "compiled")
"""One kernel for each of the framework's operations; kernels as its compiler merges them (`estimator.tracing.fusion`)."""

LOGITS: Final = ("last", "all")

TENSOR_TYPES: Final = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Type of the weights by precision; narrower precisions are traced in 16 bits and then applied to the layers that support them."""

SIXTEEN_BIT: Final = ("bf16", "fp16")

NARROW_BASE: Final = "bf16"
"""Precision of the trace of a model that computes in 8 or 4 bits."""

SIZES: Final = ("batch", "sequence")
"""Sizes that the inputs of a model may have; images have no sequence, and a user's function may fix either."""

LARGEST_SIZE: Final = 10**7
"""Most sequences, tokens or pixels; more are a mistake."""

Size = Annotated[int, Span(1, LARGEST_SIZE)]


@frozen
class TraceRequest:
    """A model and one phase of its work.

    model       a name that `estimator.tracing.models` knows, a Transformers configuration file or its folder,
                or MODULE:CALLABLE
    batch       sequences or images
    sequence    tokens of a sequence; in decode the tokens that the new one attends to, including itself
    phase       one of PHASES
    precision   precision of weights and activations; "": as the configuration stores the weights, else bf16
    weights     format of the layers' weights, a name of `estimate llm --weights`, instead of the configuration's; excludes precision
    attention   "eager": separate kernels; "flash": one fused kernel; "": own code with scaled_dot_product_attention, else "eager"
    runtime     one of RUNTIMES; "": compiled if the own code says so (torch.compile), else eager
    master      a training step keeps weights and moments in fp32 beside the weights that compute (mixed precision)
    head        with the task's head (a language model's vocabulary, a classifier), or the bare model
    logits      "last": of the last token only, as generation needs; "all"; a training step uses all
    image_size  height and width of images [pixel]; 0: from the configuration
    settings    fields of the configuration to change
    """

    model: str
    batch: Size = 1
    sequence: Size = 512
    phase: Annotated[str, Words(PHASES)] = "prefill"
    precision: str = ""
    weights: str = ""
    attention: Annotated[str, Words((*ATTENTION_FORMS, ""))] = ""
    runtime: Annotated[str, Words((*RUNTIMES, ""))] = ""
    master: bool = False
    head: bool = True
    logits: Annotated[str, Words(LOGITS)] = "last"
    image_size: Annotated[int, Span(0, LARGEST_SIZE)] = 0
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def tensor_type(self) -> str:
        """Name of the framework's type in which the model is traced."""
        return TENSOR_TYPES.get(self.precision, TENSOR_TYPES[NARROW_BASE])

    def label(self, sizes: Collection[str]) -> str:
        """Short name of the request; sizes: the subset of "batch" and "sequence" that the model's inputs have."""
        model = self.model.rstrip("/").removesuffix("/config.json").rpartition("/")[2].removesuffix(".json")
        stated = [f"{name[0]}{getattr(self, name)}" for name in SIZES if name in sizes]
        stated += [f"i{self.image_size}"] if self.image_size else []
        stated += [
            self.precision,
            *(["master"] if self.master else []),
            self.attention,
            *([self.runtime] if self.runtime == "compiled" else []),
        ]
        return "-".join((model, self.phase, *stated))


def checked_request(request: TraceRequest) -> TraceRequest:
    """The request with the canonical name of its precision.  Raises WorkloadError, naming the field, for an impossible trace."""
    try:
        read(TraceRequest, asdict(request))
        if request.phase == "decode" and request.sequence < 2:
            raise FaultError("= 1 must be at least 2 to decode", "sequence")
    except FaultError as fault:
        raise WorkloadError(str(fault)) from None
    precision = canonical_precision(request.precision or NARROW_BASE)
    if precision is None:
        raise WorkloadError(f"unknown precision {request.precision!r}; known: {', '.join(BYTES_PER_ELEMENT)}")
    if request.master and (request.phase != "train" or precision not in SIXTEEN_BIT):
        raise WorkloadError(f"master weights are of a training step in 16 bits, not of {request.phase} in {precision}; leave --master out")
    if request.phase == "train" and precision not in TENSOR_TYPES:
        raise WorkloadError(f"a training step in {precision} is not modelled; choose one of {', '.join(TENSOR_TYPES)}")
    return replace(request, precision=precision)
