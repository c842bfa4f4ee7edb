"""Architecture of a language model from its config.json: sizes, and the matrices that one GPU of a group holds.

Source of the fields and of their defaults: the configuration classes of Transformers 4.57.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from estimator.tracing.models import Fields, load_model_config
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.reader import FaultError, Span, Words, read, read_file
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import LARGEST_NUMBERS


@frozen
class Kind:
    """Properties of an architecture that its config.json does not state, described in `configs/serving/architectures.toml`"""

    gated: bool = True
    qk_norm: bool = False
    window: Literal["", "most", "upper", "chunks"] = ""
    norms: Annotated[int, Span(2, 8)] = 2
    positions: bool = False
    routed: bool = False
    latent: bool = False
    gated_attention: bool = False
    scan: Literal["", "mamba", "beside", "delta"] = ""
    defaults: Fields = field(default_factory=dict)


@cache
def kinds() -> Mapping[str, Kind]:
    """Architectures by `model_type`."""
    return read_file(Mapping[str, Kind], resource_folder("serving") / "architectures.toml", "architectures", WorkloadError)  # type: ignore[type-abstract]


NAMES: Final = {
    "hidden_size": ("n_embd", "n_embed"),
    "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head",),
    "num_key_value_heads": ("num_kv_heads", "multi_query_group_num"),
    "head_dim": ("kv_channels",),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "seq_length"),
    "intermediate_size": ("ffn_dim", "n_inner", "ffn_hidden_size"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "first_k_dense_replace": ("moe_layer_start_index",),
    "moe_layer_freq": ("moe_layer_interval", "interleave_moe_layer_step"),
    "sliding_window": ("attention_chunk_size",),
    "rope_scaling": ("rope_parameters",),
    "layer_types": ("layers_block_type",),
    "shared_expert_intermediate_size": ("moe_shared_expert_intermediate_size", "shared_intermediate_size"),
    "mamba_n_heads": ("mamba_num_heads", "linear_num_value_heads"),
    "mamba_n_groups": ("n_groups", "linear_num_key_heads"),
    "mamba_d_head": ("mamba_head_dim", "linear_value_head_dim"),
    "mamba_d_state": ("ssm_state_size", "linear_key_head_dim"),
    "mamba_d_conv": ("conv_kernel", "linear_conv_kernel_dim"),
    "mamba_chunk_size": ("chunk_size",),
    "mamba_ssm_dtype": ("mamba_ssm_cache_dtype",),
}
"""Other names of fields."""

UNSERVED: Final = (
    "index_topk",
    "sparse_config",
    "linear_attn_config",
    "use_cla",
    "num_kv_shared_layers",
    "block_configs",
    "moe_latent_size",
)
"""Fields by which attention is sparse or linear, layers share their keys or have sizes of their own, or experts have inputs of theirs."""

BOUNDED: Final = ("sliding_attention", "chunked_attention")
ATTENDING: Final = ("full_attention", "attention", *BOUNDED)
SCANNING: Final = ("linear_attention", "mamba")
INNER: Final = ("mlp", "moe")
LETTERS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Types of layers, and the letters of `hybrid_override_pattern`, whose layers hold one of these alone."""

LATENT_SIZES: Final = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
"""Sizes of latent attention for which the family `mla` holds [1].  Sources: DeepSeek-V2 (arXiv 2405.04434), Kimi K2 (arXiv 2507.20534)."""

VOCAB_PADDING: Final = 64
"""Engines pad the output layer to a multiple of this many words.  Source: vLLM and SGLang, vocab_parallel_embedding.py
(DEFAULT_VOCAB_PADDING_SIZE)."""

MOST: Final = 2**24
"""Largest size or number of tokens of an architecture that is read [1] (assumed)."""


@frozen
class Experts:
    """Routed experts: how many, how many each token takes, their inner size; inner size of the shared ones; layers that have experts."""

    count: int
    chosen: int
    inter: int
    shared_inter: int
    layers: int


class Latent(NamedTuple):
    """Latent attention: ranks of queries (0: not compressed) and of keys and values, sizes of a head's rotary, other and value part."""

    query_rank: int
    rank: int
    rope_dim: int
    plain_dim: int
    value_dim: int


class Scan(NamedTuple):
    """Layers that pass a state from token to token in place of keys.

    key_heads: heads of keys, which heads share.  value_dim, key_dim: sizes of a head's state.  taps: tokens of the convolution before it.
    chunk: tokens of a prompt taken at once.  state_byte: of an element.  delta: whether a token replaces what its key has in the state
    (gated delta rule) or adds to it (Mamba-2).
    """

    layers: int
    heads: int
    key_heads: int
    value_dim: int
    key_dim: int
    taps: int
    chunk: int
    state_byte: int
    delta: bool

    def on(self, gpus: int) -> "Scan":
        """What one GPU of a group holds; keys that are fewer than GPUs are copied."""
        return self._replace(heads=self.heads // gpus, key_heads=max(self.key_heads // gpus, 1))

    @property
    def inner(self) -> int:
        """Values of all heads."""
        return self.heads * self.value_dim

    @property
    def mixed(self) -> int:
        """Channels of the convolution: values, keys and queries."""
        return self.inner + 2 * self.key_heads * self.key_dim

    @property
    def sequence_byte(self) -> float:
        """States of a sequence in all layers [byte]."""
        return self.layers * (self.inner * self.key_dim * self.state_byte + 2.0 * (self.taps - 1) * self.mixed)


@frozen
class Layout:
    """Parallelism: every layer is divided among `tensor_parallel` GPUs, experts among `expert_parallel` groups of GPUs.

    Beyond tensor_parallel, expert_parallel means several copies of the attention, each with its own requests (data-parallel attention).
    """

    tensor_parallel: int = 1
    expert_parallel: int = 1

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return max(self.tensor_parallel, self.expert_parallel)

    @property
    def copies(self) -> int:
        """Copies of the attention."""
        return self.gpus // self.tensor_parallel


class Product(NamedTuple):
    """A kind of matrix that one GPU holds: name, outputs, inputs, and how many: layers, and copies in a layer."""

    name: str
    n: int
    k: int
    layers: int
    copies: int = 1

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.n * self.k * self.layers * self.copies


@frozen
class Architecture:
    """Sizes of a language model; family: its `model_type`.

    layers: pairs of attention or a scan and an inner layer; attended, dense_layers: those that have attention, and an inner layer without
    experts.  inter: its size.  window: longest distance of attention in `window_layers` layers [token], 0 if unlimited.
    longest: context for which it was trained [token], 0 if unknown.  positions: learned position vectors.
    """

    name: str
    family: str
    kind: Kind
    layers: int
    attended: int
    dense_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inter: int
    vocab: int
    tied: bool
    window: int
    window_layers: int
    longest: int
    positions: int
    experts: Experts | None
    latent: Latent | None
    scan: Scan | None

    @property
    def embeddings(self) -> int:
        """Weights of the vectors of tokens and positions."""
        return (self.vocab + self.positions) * self.hidden

    def products(self, layout: Layout) -> tuple[Product, ...]:
        """Matrices of one GPU; the ones that are equal in all layers are one item.  Keys that are fewer than GPUs are copied."""
        self.check(layout)
        gpus, hidden, wide = layout.tensor_parallel, self.hidden, 1 + self.kind.gated
        found = [*self._attention(gpus), *self._scanning(gpus), *_pair("", wide, hidden, self.inter // gpus, self.dense_layers)]
        if self.experts:
            own, layers = self.experts, self.experts.layers
            held = own.count // layout.expert_parallel
            inter = own.inter // (layout.gpus // layout.expert_parallel)
            found += [Product("router", own.count, hidden, layers), *_pair("expert_", wide, hidden, inter, layers, held)]
            found += _pair("shared_", wide, hidden, own.shared_inter // gpus, layers if own.shared_inter else 0)
        return (*(one for one in found if one.layers), Product("head", -(-self.vocab // VOCAB_PADDING) * VOCAB_PADDING // gpus, hidden, 1))

    def _attention(self, gpus: int) -> list[Product]:
        heads, hidden, layers, latent = self.heads // gpus, self.hidden, self.attended, self.latent
        out = Product("out", hidden, heads * (latent.value_dim if latent else self.head_dim), layers)
        if latent is None:
            queries = heads * (1 + self.kind.gated_attention)
            return [Product("qkv", (queries + 2 * max(self.kv_heads // gpus, 1)) * self.head_dim, hidden, layers), out]
        query = Product("q_b", heads * self.head_dim, latent.query_rank or hidden, layers)
        down = Product("qkv_a", latent.query_rank + latent.rank + latent.rope_dim, hidden, layers)
        return [down, query, Product("kv_b", heads * (latent.plain_dim + latent.value_dim), latent.rank, layers), out]

    def _scanning(self, gpus: int) -> list[Product]:
        if self.scan is None:
            return []
        own = self.scan.on(gpus)  # beside what is mixed: gates of values, and one or two numbers a head
        into = own.mixed + own.inner + (1 + own.delta) * own.heads
        return [Product("scan_in", into, self.hidden, own.layers), Product("scan_out", self.hidden, own.inner, own.layers)]

    def check(self, layout: Layout) -> None:
        """Refuse a layout that does not divide the model.  Raises WorkloadError."""
        tensor, expert = layout.tensor_parallel, layout.expert_parallel
        if min(tensor, expert) < 1 or layout.gpus % min(tensor, expert):
            raise WorkloadError(
                f"tensor parallelism {tensor} and expert parallelism {expert}: one must divide the other; both are at least 1"
            )
        scan = self.scan
        own = self.experts or Experts(count=1, chosen=1, inter=0, shared_inter=0, layers=0)
        rests = {
            f"{self.heads} heads": self.heads % tensor,
            f"{self.kv_heads} key heads": max(self.kv_heads, tensor) % min(self.kv_heads, tensor),
            f"{scan.heads} heads of states" if scan else "": scan and scan.heads % tensor,
            f"the inner size {self.inter}": self.dense_layers and self.inter % tensor,
            f"{own.count} experts" if self.experts else "a model without experts": own.count % expert,
            f"the inner size {own.inter} of an expert": own.inter % (layout.gpus // expert) + own.shared_inter % tensor,
        }
        whole = next((name for name, rest in rests.items() if rest), "")
        if whole:
            raise WorkloadError(
                f"{self.name}: tensor parallelism {tensor} and expert parallelism {expert} do not divide {whole}; choose others"
            )


def _pair(prefix: str, wide: int, hidden: int, inter: int, layers: int, copies: int = 1) -> list[Product]:
    """The merged products into the inner layer, and the one out of it."""
    return [Product(prefix + "up", wide * inter, hidden, layers, copies), Product(prefix + "down", hidden, inter, layers, copies)]


# Reading ------------------------------------------------------------------------------------------------------------------------------


def read_config(source: str | Path | Fields) -> Fields:
    """Fields of a config.json: a file, a folder that holds one, the name of a shipped configuration, or the fields themselves.

    Raises WorkloadError.
    """
    if isinstance(source, Mapping):
        return _text_part(source)
    found, path = load_model_config(str(source)), Path(source).resolve()
    name = path.parent.name if path.name == "config.json" else path.name.removesuffix(".json")
    return _text_part({"name": name, "model_type": found.model_type, **found.config, **found.weights})


def _text_part(config: Fields) -> Fields:
    """The fields of a model that also reads images, with those of its language model in place of its own."""
    text = config.get("text_config") or config.get("llm_config")
    return {**config, **text} if isinstance(text, Mapping) else config


Types = tuple[str, ...]
"""What each layer is; empty if the configuration does not state it."""


class _Fields:
    """Checked access to the fields of a configuration, under any of their names."""

    def __init__(self, values: Fields) -> None:
        self.values = values

    def own(self, name: str) -> str:
        """The name under which the configuration has a field, else the usual one."""
        return next((one for one in (name, *NAMES.get(name, ())) if self.values.get(one) is not None), name)

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(self.own(name))
        return default if value is None else value

    def number(self, name: str, default: int | None = None, most: int = MOST) -> int:
        value = self.get(name, default)
        if value is None:
            raise FaultError(f"lacks the field {name!r}, which serving needs")
        if isinstance(value, list | tuple) and value and all(one == value[0] for one in value):  # one for each layer
            value = value[0]
        return int(read(Annotated[int, Span(0 if default == 0 else 1, most)], value, self.own(name)))

    def numbers(self, name: str) -> tuple[int, ...]:
        return read(tuple[Annotated[int, Span()], ...], self.get(name, ()), name)

    def truth(self, name: str, default: bool = False) -> bool:
        return read(bool, self.get(name, default), self.own(name))


def read_architecture(source: str | Path | Fields) -> Architecture:
    """The architecture that a configuration describes (`read_config`).

    Raises WorkloadError for an unknown architecture, listing the known ones, and for a configuration without the fields that it needs.
    """
    config = read_config(source)
    name = str(config.get("name") or config.get("model_type") or "the configuration")
    try:
        return _architecture(name, _Fields(config))
    except FaultError as fault:
        raise WorkloadError(f"{name}: {fault}".replace("the document ", "the configuration ")) from None


def _architecture(name: str, fields: _Fields) -> Architecture:
    model = str(fields.get("model_type", ""))
    if model not in kinds():
        fault = f"has the architecture {model!r:.60}, which is not served" if model else "lacks the field 'model_type'"
        raise FaultError(f"{fault}; known: {', '.join(kinds())}")
    kind = kinds()[model]
    fields = _filled(kind, fields)
    number = fields.number
    unserved = [name for name in UNSERVED if fields.get(name)]
    if not kind.routed and number("num_experts", 0) > 1:
        unserved.append(fields.own("num_experts"))
    if unserved:
        raise FaultError("changes what the layers do in a way that is not served", unserved[0])
    types = _types(kind, fields)
    layers = number("num_hidden_layers", len(types) or None)
    scan, attended = _scan(kind, fields, types, layers), sum(one in ATTENDING for one in types) if types else layers
    heads, hidden = number("num_attention_heads"), number("hidden_size")
    latent = _latent(fields) if kind.latent else None
    head_dim = latent.plain_dim + latent.rope_dim if latent else number("head_dim", hidden // heads or None)
    longest, window = _longest(fields), number("sliding_window", 0)
    window_layers = _window_layers(kind, fields, types, layers) * bool(window)
    single = fields.truth("multi_query") and not fields.truth("new_decoder_architecture")
    kv_heads = heads if latent else 1 if single else number("num_key_value_heads", heads)
    if heads % kv_heads:
        raise FaultError(f"= {kv_heads} must divide {heads} heads", "num_key_value_heads")
    if number("word_embed_proj_dim", hidden) != hidden:
        raise FaultError("differs from hidden_size; such a projection is not served", "word_embed_proj_dim")
    experts = _experts(kind, fields, layers) if kind.routed and number("num_experts", 0 if kind.scan else None) else None
    dense = layers - (experts.layers if experts else 0)
    if set(types) & set(INNER):  # a layer holds one thing alone
        dense, layers = types.count("mlp"), layers // 2
        experts = replace(experts, layers=types.count("moe")) if experts and "moe" in types else None
    return Architecture(
        name=name,
        family=model,
        kind=replace(kind, qk_norm=fields.truth("use_qk_norm", kind.qk_norm)),
        layers=layers,
        attended=attended,
        dense_layers=dense,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        inter=number("intermediate_size_mlp", number("intermediate_size", None if kind.gated and dense else 4 * hidden)),
        vocab=number("vocab_size"),
        tied=fields.truth("tie_word_embeddings"),
        window=window if window_layers else 0,
        window_layers=window_layers,
        longest=longest,
        positions=longest * kind.positions,
        experts=experts,
        latent=latent,
        scan=scan,
    )


def _experts(kind: Kind, fields: _Fields, layers: int) -> Experts:
    number = fields.number
    none = None if kind.latent else 0  # models with latent attention state all sizes
    inter = number("moe_intermediate_size", None if kind.latent else fields.get("intermediate_size"))
    first, step = number("first_k_dense_replace", none), number("decoder_sparse_step", 1) * number("moe_layer_freq", 1)
    count, dense = number("num_experts", most=int(LARGEST_NUMBERS["experts"])), fields.numbers("mlp_only_layers")
    return Experts(
        count=count,
        chosen=number("num_experts_per_tok", most=count),
        inter=inter,
        shared_inter=number("shared_expert_intermediate_size", number("n_shared_experts", none) * inter),
        layers=sum(i >= first and (i + 1) % step == 0 and i not in dense for i in range(layers)),
    )


def _latent(fields: _Fields) -> Latent:
    for name, size in LATENT_SIZES.items():
        if fields.number(name) != size:
            raise FaultError(f"= {fields.get(name)} differs from {size}, the only size of latent attention that is known", name)
    return Latent(fields.number("q_lora_rank", 0), *LATENT_SIZES.values())


def _longest(fields: _Fields) -> int:
    """The longest context [token]; YaRN multiplies the trained one, if the field still states that one."""
    stated, scaling = fields.number("max_position_embeddings", 0), fields.get("rope_scaling")
    if not isinstance(scaling, Mapping) or "yarn" not in (scaling.get("type"), scaling.get("rope_type")):
        return stated
    factor = read(Annotated[float, Span(1.0, 1e4)], scaling.get("factor", 1.0), "rope_scaling", "factor")
    return int(max(stated, factor * _Fields(scaling).number("original_max_position_embeddings", stated)))


def _filled(kind: Kind, fields: _Fields) -> _Fields:
    return _Fields({**fields.values, **{name: one for name, one in kind.defaults.items() if fields.get(name) is None}})


def layer_types(config: Fields) -> Types:
    """The type of every layer; () if the configuration states none.  Raises FaultError."""
    kind = kinds().get(str(config.get("model_type")))
    return _types(kind, _filled(kind, _Fields(config))) if kind else ()


def _types(kind: Kind, fields: _Fields) -> Types:
    """`layer_types` from fields with their defaults."""
    scan = kind.scan
    listed, letters = fields.get("layer_types"), read(str, fields.get("hybrid_override_pattern", ""), "hybrid_override_pattern")
    known = (*ATTENDING, *((*SCANNING, *INNER) if scan else ()))
    if letters and scan:
        listed = [LETTERS.get(one, one) for one in letters]
    elif listed is None and scan:
        layers, every = fields.number("num_hidden_layers"), fields.number("full_attention_interval", 0)
        places = fields.numbers("attn_layer_indices")
        attending = range(every - 1, layers, every) if every else places
        listed = [ATTENDING[0] if i in attending else SCANNING[0] for i in range(layers)] if attending else []
    types = read(tuple[Annotated[str, Words(known)], ...], listed or (), "layer_types")
    layers = fields.number("num_hidden_layers", len(types) or None)
    if scan in ("mamba", "delta") and not types:
        raise FaultError("lacks the field 'layer_types', which serving needs")
    if types and len(types) < layers:
        raise FaultError(f"names {len(types)} of {layers} layers", "layer_types")
    return types[:layers]


def _scan(kind: Kind, fields: _Fields, types: Types, layers: int) -> Scan | None:
    count = layers if kind.scan == "beside" else sum(one in SCANNING for one in types)
    if not count:
        return None
    number = fields.number
    heads, groups = number("mamba_n_heads"), number("mamba_n_groups")
    if heads % groups:
        raise FaultError(f"= {groups} must divide {heads} heads of states", fields.own("mamba_n_groups"))
    return Scan(
        layers=count,
        heads=heads,
        key_heads=groups,
        value_dim=number("mamba_d_head"),
        key_dim=number("mamba_d_state"),
        taps=number("mamba_d_conv"),
        chunk=number("mamba_chunk_size", 256),
        state_byte=4 if fields.get("mamba_ssm_dtype") == "float32" else 2,
        delta=kind.scan == "delta",
    )


def _window_layers(kind: Kind, fields: _Fields, types: Types, layers: int) -> int:
    if types:
        return sum(one in BOUNDED for one in types)
    if kind.window == "upper":
        upper = layers - min(fields.number("max_window_layers", 28), layers)
        return upper if fields.truth("use_sliding_window") else 0
    return layers - layers // fields.number("sliding_window_pattern", MOST) if kind.window else 0
