"""Request for a trace (a model, its inputs, one phase of its work), and configurations from which models are built.

A shipped configuration with a name is `configs/models/NAME.toml`: facts that the model's authors published, no weights.  Others are
files of Transformers.  A format of stored weights comes from `quantization_config`: one that is known, or a refusal by name; the methods
are data: `configs/serving/formats.toml`.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from estimator.transforms.rescaling import LARGEST_SIZE, Size
from estimator.vocabulary.documents import UNBOUNDED_JSON, parse_json
from estimator.vocabulary.errors import EstimatorError, WorkloadError
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, FORMATS, PRECISION_ALIASES, SIXTEEN_BIT, canonical_precision
from estimator.vocabulary.reader import MAX_FILE_BYTES, FaultError, Span, Text, Words, plain, read, read_file
from estimator.vocabulary.regular_files import read_regular
from estimator.vocabulary.resources import resource_folder, resource_names
from estimator.vocabulary.values import frozen

Fields = Mapping[str, object]
Names = Mapping[str, str]

FORMAT_FILES: Final = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
FORMAT_FIELDS: Final = {"compression_config": "compressed-tensors", "quantization": "mlx"}
"""Files beside config.json, and other fields of it, in which earlier versions of a method state formats."""

ABOUT_WEIGHTS: Final = frozenset({"torch_dtype", "dtype", "quantization_config"})
NOT_FIELDS: Final = ABOUT_WEIGHTS | {"model_type", "architectures", "auto_map", "transformers_version", *FORMAT_FIELDS}
"""Fields of a configuration file about its weights, and those with the ones about its code and its model's name."""


@frozen
class ModelConfig:
    """A configuration: `model_type` and `architecture` are names that Transformers knows, `config` its fields.

    `weights`: the fields of the published weights (ABOUT_WEIGHTS); a traced model has the precision of the request instead.
    `image_size` [pixel] is the usual height and width of images, 0 if the fields state it or if there are no images.
    """

    title: Text
    source: str = ""
    model_type: Text
    architecture: str
    config: Fields
    image_size: int = 0
    weights: Fields = field(default_factory=dict)

    @property
    def quantised(self) -> Fields:
        """How the weights are stored; empty if as numbers."""
        found = self.weights.get("quantization_config")
        return found if isinstance(found, Mapping) else {}

    @property
    def precision(self) -> str:
        """Precision of weights that are stored as numbers; "" if none is stated.  Raises WorkloadError for one that is no model's."""
        stated = self.weights.get("dtype") or self.weights.get("torch_dtype")
        if not self.quantised and stated not in (None, "auto", *TENSOR_TYPES.values()):
            raise WorkloadError(f"{self.title}: torch_dtype = {stated!r:.40} is no type of a model; name one as --precision bf16")
        return PRECISION_ALIASES[str(stated)] if stated in TENSOR_TYPES.values() else ""


def model_names() -> tuple[str, ...]:
    """Names of the shipped configurations."""
    return resource_names("models")


def load_model_config(model: str) -> ModelConfig:
    """The configuration of a configuration file, a folder that holds one, or a shipped name that is none.

    Raises WorkloadError for an unknown name, listing the known ones, and for a file that is no configuration.
    """
    path = Path(model)
    try:
        path = path / "config.json" if path.is_dir() else path
        return _from_file(path)
    except (FileNotFoundError, NotADirectoryError):
        if (name := model.lower()) in model_names():
            found = read_file(ModelConfig, resource_folder("models") / f"{name}.toml", "the model", WorkloadError)
            return replace(found, config=plain(found.config), weights=plain(found.weights))
        from difflib import get_close_matches  # only for a model that is not known

        near = ", ".join(get_close_matches(model.lower(), model_names(), cutoff=0.5))
        raise WorkloadError(
            f"{model}: no model of this name and no configuration file; {near and f'nearest: {near}; '}"
            "known: `estimate trace --list`, the path of a config.json, or MODULE:CALLABLE of your own code"
        ) from None
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise WorkloadError(f"{path}: no configuration of Transformers: {error}; trace other models as MODULE:CALLABLE") from error


@frozen
class _Config:
    """Required properties of a Transformers configuration, other than its fields."""

    model_type: Text
    architectures: tuple[Text, ...] | None = None
    quantization_config: Fields | None = None


def _from_file(path: Path) -> ModelConfig:
    """The configuration in a file.  Raises OSError and ValueError."""
    # Published files of layers that scan have `"time_step_limit": [0.0, Infinity]`.
    document = dict(read(Fields, parse_json(read_regular(path, MAX_FILE_BYTES), UNBOUNDED_JSON)))
    text = read(Fields, document.get("text_config") or {}, "text_config")
    document = {**{name: text[name] for name in ABOUT_WEIGHTS if name in text}, **with_formats(document)}
    for name, method in FORMAT_FILES.items():
        if "quantization_config" not in document and (beside := path.with_name(name)).is_file():
            stated = read_file(Fields, beside, "the formats", WorkloadError)  # type: ignore[type-abstract]
            document["quantization_config"] = {"quant_method": method, **read(Fields, stated.get("quantization", stated), name)}
    found = read(_Config, {name: document[name] for name in _Config.__annotations__ if name in document})
    return ModelConfig(
        title=str(path),
        model_type=found.model_type,
        architecture=(found.architectures or ("",))[0],
        config=plain({key: value for key, value in document.items() if key not in NOT_FIELDS}),
        weights=plain({key: value for key, value in document.items() if key in ABOUT_WEIGHTS}),
    )


def with_formats(document: Fields) -> Fields:
    """Fields of a configuration, with those of FORMAT_FIELDS as its `quantization_config`.  Raises FaultError."""
    for name, method in FORMAT_FIELDS.items():
        if "quantization_config" not in document and document.get(name):
            document = {**document, "quantization_config": {"quant_method": method, **read(Fields, document[name], name)}}
    return document


WIDENED: Final = "widened"
"""Name of 4-bit weights that a kernel widens to 16 bit before each product (bitsandbytes)."""

WIDENED_BYTE: Final = 0.5 + 4.0 / 64.0
"""Storage of such a weight, with a 32-bit scale for every 64 [byte].  Source: bitsandbytes, default block size."""

DOUBLE_BYTE: Final = 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0)
"""Storage if the scales are in 8 bits, with a 32-bit one for 256 (bnb_4bit_use_double_quant) [byte].  Source: QLoRA (arXiv 2305.14314)."""

OWN_GROUPS: Final = {"fp8_block": 128, "nvfp4": 16}
"""Weights along the inputs that share a scale by the format's definition [1]."""

EXPERTS_ALONE: Final = "mxfp4"
"""Part of the names of formats that experts alone have.  Source: gpt-oss, model card."""

SKIPPED: Final = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules")
"""Fields with names of modules that are not quantised."""

OWN_BITS: Final = ("dynamic", "extra_config")
"""Fields with formats of single modules (GPTQModel, whose "-:" before a regular expression leaves modules out; AutoRound)."""

STAYS: Final = ("lm_head", "embed", "norm", "router", "*.gate")
"""Modules that stay in 16 bits whether a list names them or not: head, embeddings, norms, routers of experts."""


@frozen
class _Modules:
    """Matrices that a name of a module stands for."""

    pattern: str
    matrices: tuple[str, ...]


@frozen
class Formats:
    """The content of `configs/serving/formats.toml`."""

    weights: Names
    cache: Names
    stored: Names
    methods: Mapping[str, tuple[Names, ...]]
    modules: tuple[_Modules, ...]


@cache
def formats() -> Formats:
    """Known formats and methods."""
    return read_file(Formats, resource_folder("serving") / "formats.toml", "the formats", EstimatorError)


def chosen_format(known: Names, name: object, option: str) -> str:
    """The format of a name that a user or a configuration gives.  Raises FaultError, listing the known ones."""
    return known[read(Annotated[str, Words(tuple(known))], name, option)]


def remedy() -> str:
    """The end of a refusal: what to name instead."""
    return f"name one as --weights {', '.join(formats().weights)}"


def stored_format(quant: Fields) -> str:
    """The format of all groups of a quantised model.  Raises FaultError for a method without a known kernel."""
    top = facts(quant)
    method = (top.get("quant_method") or top.get("quant_algo") or "none").lower()
    known = formats().methods
    rules = next((known[name] for name in known if re.match(rf"{name}(_|$)", method)), None)
    if rules is None:
        raise FaultError(f"= {method[:40]} is unknown; known: {', '.join(known)}; {remedy()}", "quant_method")
    groups = read(Mapping[str, Fields], quant.get("config_groups") or {"": {}}, "config_groups")
    found = set()
    for group in groups.values():
        own = top | facts(group)
        fitting = (rule for rule in rules if all(re.fullmatch(rule[name], own.get(name, "")) for name in rule if name != "format"))
        asked = {name: own[name][:40] for rule in rules for name in rule if own.get(name)}
        found.add(next((rule["format"] for rule in fitting), f"? {asked}"))
    if len(found) > 1 or min(found).startswith("?"):
        raise FaultError(f"= {method} with {' and '.join(sorted(found))} has no known kernel; {remedy()}".replace("? ", ""), "quant_method")
    return found.pop()


def weight_byte(form: str, quant: Fields) -> float:
    """Mean storage of a weight in a format, with its scales as a configuration groups them [byte]."""
    if form == WIDENED:
        return DOUBLE_BYTE if "bnb_4bit_use_double_quant" in facts(quant) else WIDENED_BYTE
    group = group_size(form, quant)
    return 0.5 + 2.0 / group if form == "int4_wo" and group else FORMATS[form].weight_byte


def group_size(form: str, quant: Fields) -> int:
    """Weights along the inputs of a product that share a scale, as a configuration groups them; 0 if it does not."""
    stated = next((int(value) for name, value in facts(quant).items() if name.endswith("group_size") and value.isdigit()), 0)
    return stated or OWN_GROUPS.get(form, 0)


def facts(fields: Fields, inside: str = "") -> dict[str, str]:
    """Fields of nested objects as texts, by names with dots; without those that are null or false."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found |= facts(value, f"{inside}{name}.")
        elif value is not None and value is not False:
            found[inside + name] = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value).replace("True", "true")
    return found


def skipped_modules(quant: Fields) -> tuple[str, ...]:
    """Names of modules that are not quantised, as the configuration writes them.  Raises FaultError."""
    named = [name for option in SKIPPED for name in read(tuple[str, ...], quant.get(option) or (), option)]
    usual = quant.get("bits")
    for option in OWN_BITS:
        for name, own in read(Mapping[str, Fields], quant.get(option) or {}, option).items():
            bits = 16 if name.startswith("-:") else own.get("bits", usual)
            if bits not in (16, usual):
                raise FaultError(
                    f"gives {bits} bits to {name[:60]}, {usual} to others, and such mixtures are not known; {remedy()}", option
                )
            named += [f"re:{name.removeprefix('-:')}" if option == "dynamic" else name] if bits == 16 else []
    for pattern in (name.removeprefix("re:") for name in named if name.startswith("re:")):
        try:
            re.compile(pattern)
        except re.error as error:
            raise FaultError(f"names modules by 're:{pattern[:60]}', which is no regular expression ({error})") from None
    return tuple(named)


def stays_wide(name: str, quant: Fields) -> bool:
    """Whether a module keeps its 16 bits: STAYS, and what the configuration names (`re:` starts a regular expression).

    Names are parts of names: those of files lack prefixes that the framework's have.
    """
    return any(_matches(name, pattern) for pattern in (*STAYS, *skipped_modules(quant)))


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.search(pattern.removeprefix("re:"), name) is not None
    if "*" in pattern:
        return re.search(re.escape(pattern).replace(r"\*", ".*") + "$", name) is not None
    return pattern in name


PHASES: Final = ("prefill", "decode", "train")
"""One forward pass over all tokens; one new token for each sequence, with a cache; forward, backward and a step of AdamW."""

ATTENTION_FORMS: Final = ("eager", "flash")
RUNTIMES: Final = ("eager", "compiled")
"""One kernel for each of the framework's operations; kernels as its compiler merges them (`estimator.tracing.fusion`)."""

LOGITS: Final = ("last", "all")

TENSOR_TYPES: Final = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Type of the weights by precision; narrower precisions are traced in 16 bits and then applied to the layers that support them."""

NARROW_BASE: Final = "bf16"
"""Precision of the trace of a model that computes in 8 or 4 bits."""

SIZES: Final = ("batch", "sequence")
"""Sizes that the inputs of a model may have; images have no sequence, and a user's function may fix either."""

USUAL_SEQUENCE: Final = 512
"""Tokens of a sequence if nobody says how many, and the model takes so many."""


SizeOrUsual = Annotated[int, Span(0, LARGEST_SIZE)]
"""A size; 0: the usual one."""


@frozen
class TraceRequest:
    """A model and one phase of its work.

    model       a name that `estimator.tracing.models` knows, a Transformers configuration file or its folder,
                or MODULE:CALLABLE
    batch       sequences or images
    sequence    tokens of a sequence; in decode the tokens that the new one attends to, including itself; 0: the usual number
    phase       one of PHASES
    precision   precision of weights and activations; "": as the configuration states for the weights, else bf16
    weights     format of the layers' weights, a name of `estimate llm --weights`, instead of the configuration's; excludes precision
    attention   "eager": separate kernels; "flash": one fused kernel; "": own code with scaled_dot_product_attention, else "eager"
    runtime     one of RUNTIMES; "": compiled if the own code says so (torch.compile), else eager
    master      a training step keeps weights and moments in fp32 beside the weights that compute (mixed precision)
    head        with the task's head (a language model's vocabulary, a classifier), or the bare model
    logits      "last": of the last token only, as generation needs; "all"; a training step uses all
    image_size  height and width of images [pixel]; 0: from the configuration
    channels_last  convolutions and images of torch.channels_last, which no kernel has to convert
    settings    fields of the configuration to change
    """

    model: str
    batch: Size = 1
    sequence: SizeOrUsual = 0
    phase: Annotated[str, Words(PHASES)] = "prefill"
    precision: str = ""
    weights: str = ""
    attention: Annotated[str, Words((*ATTENTION_FORMS, ""))] = ""
    runtime: Annotated[str, Words((*RUNTIMES, ""))] = ""
    master: bool = False
    head: bool = True
    logits: Annotated[str, Words(LOGITS)] = "last"
    image_size: SizeOrUsual = 0
    channels_last: bool = False
    settings: Fields = field(default_factory=dict)

    @property
    def tensor_type(self) -> str:
        """Name of the framework's type in which the model is traced."""
        return TENSOR_TYPES.get(self.precision, TENSOR_TYPES[NARROW_BASE])

    def label(self, sizes: Mapping[str, int]) -> str:
        """Short name of the request; sizes: those of "batch" and "sequence" that the model's inputs have."""
        model = self.model.rstrip("/").removesuffix("/config.json").rpartition("/")[2].removesuffix(".json")
        stated = [f"{name[0]}{size}" for name, size in sizes.items()]
        stated += [f"i{self.image_size}" * bool(self.image_size), self.precision, "master" * self.master, "last" * self.channels_last]
        stated += [self.attention, self.runtime * (self.runtime == "compiled")]
        return "-".join(filter(None, (model, self.phase, *stated)))


def checked_request(request: TraceRequest) -> TraceRequest:
    """The request with the canonical name of its precision.  Raises WorkloadError, naming the field, for an impossible trace."""
    try:
        read(TraceRequest, asdict(request))
        if request.phase == "decode" and request.sequence == 1:
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
