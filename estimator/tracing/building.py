"""Models on the meta device with the inputs of the traced phase.

PyTorch and Transformers are arguments: only `estimator.tracing.torch_trace` imports them.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from estimator.tracing.models import SIZES, USUAL_SEQUENCE, ModelConfig, TraceRequest
from estimator.tracing.recording import AttentionCalls, Held, Named, recording
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.values import frozen

SCANNED: Final = frozenset({"A_log", "time_decay", "recurrent_param"})
"""Weights of the state that a layer updates token by token: Mamba and gated delta nets, RWKV, Griffin."""

POSITIONS: Final = ("max_position_embeddings", "n_positions", "max_target_positions")
"""Fields of a configuration that limit the length of a sequence."""

USUAL_IMAGE: Final = 224
"""Height and width of images where a configuration says none, as of ImageNet's classifiers [pixel]."""

SOUND_POSITIONS: Final = "max_source_positions"
"""The field of a speech model's configuration for the positions of its encoder; two windows of sound are one position (Whisper)."""

VISION: Final = "vision_config"
"""The part of a configuration about images, in models that also have text."""

CACHES: Final = ("cache", "past_key_values")
"""The input of a Transformers model for its cache: its name since Transformers 5.24, and before."""


@frozen
class Job:
    """A model on the meta device with its inputs, by position and by name.

    `family` groups workloads, `title` names the built model; `window` [token] is the window of sliding attention, 0 without one.
    `sizes`: those of "batch" and "sequence" that the inputs have; `compiled`: the model, or a part of it, is one of torch.compile.
    """

    family: str
    title: str
    window: int
    model: Any
    placed: tuple[Any, ...]
    named: Named
    sizes: Mapping[str, int]
    compiled: bool = False


def configured_job(torch: Any, transformers: Any, request: TraceRequest, config: ModelConfig) -> Job:
    """A model of Transformers, built from its configuration."""
    known = transformers.CONFIG_MAPPING
    if config.model_type not in known:
        raise WorkloadError(f"{request.model}: Transformers {transformers.__version__} knows no model_type {config.model_type!r}")
    kind = known[config.model_type]
    usual = kind()
    for key in request.settings:
        if key not in config.config and not hasattr(usual, key):
            raise WorkloadError(f"{request.model}: its configuration has no field {key!r}; look at --set")
    settings = kind(**_with_image_size({**config.config, **request.settings}, usual, request.image_size))
    with torch.device("meta"):
        model = _build(torch, transformers, request, config, settings)
        _refuse_scans(request, model)
        text = getattr(model.config, "text_config", model.config)
        request = _with_length(request, text)
        arguments = _inputs(torch, request, config, model)
    written_out = not request.attention and getattr(model, "_supports_sdpa", False)
    unfused = "; its attention as separate kernels, not fused as by default (--attention flash)" if written_out else ""
    alone = "; its tokens alone, without images" if hasattr(model.config, VISION) and "pixel_values" not in arguments else ""
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    return Job(
        family=config.model_type,
        title=f"{config.title}; {type(model).__name__} of Transformers {transformers.__version__}{unfused}{alone}",
        window=window or 0,
        model=model,
        placed=(),
        named=arguments,
        sizes={"batch": request.batch} | ({"sequence": request.sequence} if {"input_ids", "decoder_input_ids"} & arguments.keys() else {}),
    )


def _with_image_size(values: Named, usual: Any, size: int) -> Named:
    """Fields of a configuration with images of the requested `size`: positions are learnt for one size."""
    changed = dict(values)
    if size and hasattr(usual, "image_size"):
        changed["image_size"] = size
    if size and hasattr(getattr(usual, VISION, None), "image_size"):
        changed[VISION] = {**values.get(VISION, {}), "image_size": size}
    return changed


def _build(torch: Any, transformers: Any, request: TraceRequest, config: ModelConfig, settings: Any) -> Any:
    """The model with or without its head; attention is fused if the model uses PyTorch's function."""
    kind = getattr(transformers, config.architecture, None) if request.head and config.architecture else transformers.AutoModel
    if kind is None:
        raise WorkloadError(f"{request.model}: Transformers {transformers.__version__} knows no architecture {config.architecture!r}")
    make = kind._from_config if hasattr(kind, "_from_config") else kind.from_config
    options = {"dtype": getattr(torch, request.tensor_type)}
    if request.attention == "flash":
        with suppress(ValueError):  # the model has its own attention
            return make(settings, attn_implementation="sdpa", **options)
    return make(settings, attn_implementation="eager", **options)


def _refuse_scans(request: TraceRequest, model: Any) -> None:
    for part in model.modules():
        if SCANNED & part._parameters.keys():
            raise WorkloadError(
                f"{request.model}: its layers {type(part).__name__} scan a state over the tokens; the fused kernels of such scans are not "
                "modelled, and the one of PyTorch alone (some kernels a token) is not what runs: `estimate llm` serves those that "
                "attend, too, or trace the other layers as MODULE:CALLABLE"
            )


def _inputs(torch: Any, request: TraceRequest, config: ModelConfig, model: Any) -> Named:
    """Inputs in the form of a tokenizer or an image processor; for a decoding step, also its cache."""
    accepted = inspect.signature(model.forward).parameters
    main = model.main_input_name
    if main == "pixel_values":
        given = {main: _images(torch, request, config, model)}
        if request.phase == "decode":
            raise WorkloadError(f"{request.model}: an image model has no cache; choose --phase prefill or train")
        pixels = given[main].shape[2:] if type(model).__name__.endswith("SemanticSegmentation") else ()
        labels = torch.empty((request.batch, *pixels), dtype=torch.int64)
    elif main == "input_ids":
        two_towers = hasattr(model, "text_model") and hasattr(model, "vision_model")
        if request.image_size and not two_towers:
            raise WorkloadError(f"{request.model}: takes tokens and no images; leave --image-size out")
        given = {name: torch.ones((request.batch, request.sequence), dtype=torch.int64) for name in (main, "attention_mask")}
        labels = given[main][:, 0] if type(model).__name__.endswith("SequenceClassification") else given[main]
        if getattr(model.config, "is_encoder_decoder", False):
            given["decoder_input_ids"] = given[main]
        if two_towers:
            given["pixel_values"] = _images(torch, request, config, model)
    elif main == "input_features" and hasattr(model.config, SOUND_POSITIONS):
        shape = (request.batch, model.config.num_mel_bins, 2 * getattr(model.config, SOUND_POSITIONS))
        labels = torch.ones((request.batch, request.sequence), dtype=torch.int64)
        given = {main: torch.empty(shape, dtype=getattr(torch, request.tensor_type)), "decoder_input_ids": labels}
    else:
        raise WorkloadError(f"{request.model}: takes {main}; only token, image and speech models are built by name: use MODULE:CALLABLE")
    if request.phase == "train":
        return given | ({"labels": labels} if "labels" in accepted else {})
    if request.logits == "last" and "logits_to_keep" in accepted:
        given["logits_to_keep"] = 1
    return _decoding_inputs(torch, request, model, given) if request.phase == "decode" else given


def _images(torch: Any, request: TraceRequest, config: ModelConfig, model: Any) -> Any:
    """Images of the requested size, else of the configuration's, else of USUAL_IMAGE."""
    settings = getattr(model.config, VISION, model.config)
    size = request.image_size or config.image_size or getattr(settings, "image_size", 0) or USUAL_IMAGE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.empty((request.batch, settings.num_channels, height, width), dtype=getattr(torch, request.tensor_type))


def _with_length(request: TraceRequest, settings: Any) -> TraceRequest:
    """The request with a number of tokens: the usual one, or the most that the model takes.  Raises WorkloadError for more than that."""
    asked, usual = request.sequence, USUAL_SEQUENCE
    for name in POSITIONS:
        most = getattr(settings, name, None)
        if isinstance(most, int) and most > 0:
            usual = min(usual, most)
            if most < asked:
                raise WorkloadError(
                    f"{request.model}: sequence = {asked} is longer than {name} = {most}; "
                    f"ask for less, or `estimate trace --set {name}={asked}`"
                )
    return replace(request, sequence=asked or usual)


def _decoding_inputs(torch: Any, request: TraceRequest, model: Any, given: Named) -> Named:
    """One new token for each sequence, and from a pass that is not recorded a cache of the tokens before it and what an encoder made."""
    encoded = "decoder_input_ids" in given
    cut = ("decoder_input_ids",) if encoded else ("input_ids", "attention_mask")
    before = {name: tensor[:, :-1] if name in cut else tensor for name, tensor in given.items()}
    accepted = inspect.signature(model.forward).parameters
    name, cache = next((name for name in CACHES if name in accepted), ""), None
    if name:
        with torch.no_grad(), recording(torch, [], AttentionCalls(form=request.attention), Held()):
            made = model.eval()(**before, use_cache=True)
            cache = getattr(made, name, None)
            for layer in getattr(cache, "layers", ()):  # windows are views of all keys: from the next step on their storage is their own
                vars(layer).update({part: one.clone() for part, one in vars(layer).items() if isinstance(one, torch.Tensor)})
    if cache is None:
        raise WorkloadError(f"{request.model}: keeps no cache of keys and values, so it does not decode; choose --phase prefill or train")
    made_before = {"encoder_outputs": (made.encoder_last_hidden_state,)} if encoded else {}
    return given | made_before | {cut[0]: given[cut[0]][:, -1:], name: cache, "use_cache": True}


def user_job(torch: Any, request: TraceRequest) -> Job:
    """A model that the user's own function returns, with or without its inputs."""
    if request.phase == "decode":
        raise WorkloadError(f"{request.model}: own code decodes where its inputs say so; choose --phase prefill or train")
    if request.settings:
        raise WorkloadError(f"{request.model}: own code has no configuration to change; leave --set out")
    function = _user_function(request.model)
    request = replace(request, sequence=request.sequence or USUAL_SEQUENCE)
    accepted = inspect.signature(function).parameters
    wanted = {name: getattr(request, name) for name in (*SIZES, "image_size", "precision") if name in accepted and getattr(request, name)}
    if request.image_size and "image_size" not in wanted:
        raise WorkloadError(f"{request.model}: takes no image_size; leave --image-size out")
    dtype = getattr(torch, request.tensor_type)
    with torch.device("meta"):
        made = function(**wanted)
        model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(model, torch.nn.Module):
            raise WorkloadError(f"{request.model}: must return a torch.nn.Module, or one with its inputs; got {type(model).__name__}")
        if any(isinstance(part, torch.jit.ScriptModule) or ".ao.nn.quantized." in type(part).__module__ for part in model.modules()):
            raise WorkloadError(f"{request.model}: torch.jit or torch.ao hides a part of it; return the model before it (--weights)")
        _refuse_scans(request, model)
        compiled = any(hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) for part in model.modules())
        model = model._orig_mod if hasattr(model, "_orig_mod") else model
        sizes = {name: getattr(request, name) for name in SIZES if inputs is None or name in wanted}
        if inputs is None:
            inputs = (torch.ones((request.batch, request.sequence), dtype=torch.int64),)
        named = dict(inputs) if isinstance(inputs, Mapping) else {}
        placed = () if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple | list) else (inputs,)

        def moved(one: Any) -> Any:
            return one.to("meta", dtype if one.is_floating_point() and one.element_size() > 1 else one.dtype)

        names: dict[int, list[str]] = {}  # of each weight, as moving separates those that layers share
        for name, weight in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(weight), []).append(name)
        model = model._apply(moved)
        for first, *others in names.values():
            for layer, _, own in (name.rpartition(".") for name in others):
                setattr(model.get_submodule(layer), own, model.get_parameter(first))
        placed, named = torch.utils._pytree.tree_map_only(torch.Tensor, moved, (tuple(placed), named))
        title = type(model).__name__
        return Job(
            family=title.lower(),
            title=title,
            window=0,
            model=model,
            placed=placed,
            named=named,
            sizes=sizes,
            compiled=compiled,
        )


def _user_function(text: str) -> Callable[..., Any]:
    """The function that MODULE:CALLABLE or FILE.py:CALLABLE names; modules are also searched in the present folder, or beside the file."""
    place, _, name = text.rpartition(":")
    path = Path(place)
    in_file = path.suffix == ".py"
    here = str(path.resolve().parent if in_file else Path.cwd())
    sys.path.insert(0, here)
    try:
        module = _module_of(path) if in_file else importlib.import_module(place)
    finally:
        sys.path.remove(here)
    function = getattr(module, name, None)
    if not callable(function):
        raise WorkloadError(f"{text}: {place} has nothing to call by the name {name!r}")
    return function  # type: ignore[no-any-return]


def _module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(str(path), path)
    if spec is None or spec.loader is None or not path.is_file():
        raise WorkloadError(f"{path}: no such file of Python code")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module
