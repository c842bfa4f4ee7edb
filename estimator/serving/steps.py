"""Operators that one GPU launches in a step of a serving engine: a pass over pieces of prompts and one token of each running sequence.

Engines merge the products of queries, keys and values, and those of gate and inner layer, add residuals inside norms, write the cache in
place and launch all of it as a CUDA graph, which costs the host nothing.  Sources: vLLM 0.12, TensorRT-LLM 1.2.
"""

import math
from collections.abc import Iterator
from typing import Final

from estimator.model.coefficients import NODE_GPUS
from estimator.serving.architecture import Architecture, Layout, Product
from estimator.serving.weights import SIXTEEN, Weights
from estimator.tracing.models import WIDENED, WIDENED_BYTE
from estimator.transforms.rewriting import widened
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import OWN_EXPERTS, Operator, Workload, merge_counts

ROUTING_SKEW: Final = 1.01
"""Exponent of the distribution of tokens over experts [1], the smaller one of published tables (assumed): few tokens hit fewer experts than
an even choice of different experts, and the most loaded GPU sets the pace."""

FUSES_SCALES: Final = ("", "vllm")
"""Libraries whose kernels before a product also convert its inputs to fp8 by a given scale; others launch a kernel for it.
Sources: vLLM 0.12 (passes of torch.compile), TensorRT-LLM 1.0 (FP8QDQLinearMethod), SGLang 0.5 (static_quant_fp8)."""

SCALES_TENSORS: Final = "trtllm"
"""The library whose dynamic scale of fp8 inputs holds for a whole tensor, so that a kernel of its own searches for it; those of others hold
for a token each, and the kernel that converts finds them.  Sources: TensorRT-LLM 1.0 (FP8QDQLinearMethod), vLLM 0.12
(use_per_token_if_dynamic), SGLang 0.5 (per_token_quant_fp8).  That kernel takes 3 us on an H100, 4 on a B200 (vLLM pulls 17126, 20071),
TensorRT-LLM's two take 9 and 11."""

WIDENED_IN_MARLIN: Final = {("vllm", "w4a16_mxfp4"): "int4_wo"}
"""Formats of experts that a library runs by the kernel of another format with as many bytes: vLLM's Marlin widens mxfp4 as it widens int4.
Source: vLLM 0.18 (VLLM_MXFP4_USE_MARLIN).  Without it gpt-oss-120b under vLLM 0.18 on 8 H200 errs by 38 instead of 6 % in time."""

DIVIDED_GROUPS: Final = ("expert_down", "int4_wo")
"""The matrix, with its format, in which engines divide a group of weights with one scale; they load no part of others.
Sources: vLLM (issues 5675, 17569, 49949; moe_wna16.py), SGLang (issues 3345, 3571, 26107)."""

STATE_PASSES: Final = 1.5
"""Time of a decoding step's pass over states, over that of an element-wise kernel of as many bytes [1].  Published ones reach 0.42 on a
B200 and 0.53 on an H200 of the memory's rate (vLLM pull request 31722), and 0.75 (flashinfer 3127), element-wise ones about 0.85."""

Launch = tuple[Operator, float]


@frozen
class Step:
    """Tokens of one pass through one copy of the attention.

    prompts: (new tokens, tokens that they attend to, themselves included) of each piece of a prompt; together: mean number of each such
    piece; sequences: running ones, with one new token each; context: mean number of tokens that this one attends to.
    """

    prompts: tuple[tuple[int, int], ...] = ()
    together: float = 1.0
    sequences: int = 0
    context: float = 0.0

    @property
    def tokens(self) -> int:
        """New tokens."""
        return round(self.together * sum(new for new, _ in self.prompts)) + self.sequences


@frozen
class _Pass:
    """A step of a model on one GPU; `logits`: sequences whose next token is wanted."""

    model: Architecture
    weights: Weights
    layout: Layout
    step: Step
    library: str
    skew: float

    @property
    def logits(self) -> int:
        return round(self.step.together * len(self.step.prompts)) + self.step.sequences

    @property
    def fused(self) -> bool:
        """Whether the kernel before a product converts its inputs."""
        return self.library in FUSES_SCALES

    def operator(self, family: str, name: str, *shape: float, precision: str = SIXTEEN, out: str = "", cached: str = "") -> Operator:
        """An operator without a cost for the host."""
        return Operator(
            family=family,
            operator=name,
            precision=precision,
            shape=tuple(map(float, shape)),
            precision_out=out,
            precision_kv=cached,
            library=self.library,
            host_share=0.0,
        )


def step_workload(
    architecture: Architecture, weights: Weights, layout: Layout, step: Step, library: str = "", skew: float = ROUTING_SKEW
) -> Workload:
    """Operators that one GPU of a layout launches in a step, with their counts over all layers; each piece of a prompt gives a token.

    library: one of LIBRARIES, "" for any.  skew: exponent of the distribution of tokens over experts, 0 if it is even.
    Raises WorkloadError for a step without tokens or beyond the context, a format of experts that are not there, and a layout that does not
    divide the model.
    """
    _check(architecture, step)
    if architecture.experts is None and weights.experts != weights.layer:
        raise WorkloadError(f"{architecture.name} has no experts, and {weights.name} is a format of experts alone; take another --weights")
    _check_groups(architecture, weights, layout)
    run = _Pass(model=architecture, weights=weights, layout=layout, step=step, library=library, skew=skew)
    launches = [*_products(run), *_attention(run), *_scans(run), *_routed(run), *_between(run), *_ends(run), *_collectives(run)]
    operators, counts = merge_counts(*zip(*launches, strict=True))
    own = architecture.experts and (library, weights.experts) in OWN_EXPERTS
    several = f"{layout.gpus} GPUs: collectives of more than {NODE_GPUS} of one node were not measured, and links between nodes are slower"
    notes = {
        f"assumed routing: loads of the experts follow a power law with exponent {skew:g} (0: equal loads)": architecture.experts,
        f"no table has the experts' kernels of {library}: the geometric mean of TensorRT-LLM's time and the least one": own,
        "products in fp8 as measured, less (negative counts) what a given scale saves of their conversion": weights.static,
        "no table has kernels that scan a state: as products of chunks and as passes over memory": architecture.scan,
        "weights in float32 are served in 16 bit: engines convert them": weights.converted,
    }
    return Workload(
        name=architecture.name,
        model_family=architecture.family,
        operators=operators,
        counts=counts,
        warnings=(several,) if layout.gpus > NODE_GPUS else (),
        notes=tuple(line for line, holds in notes.items() if holds),
        gpus=layout.gpus,
    )


def weight_bytes(architecture: Architecture, weights: Weights, layout: Layout) -> float:
    """Weights that one GPU holds [byte], without norms and biases; a head that is the table of tokens counts once."""
    held = [one for one in architecture.products(layout) if one.name != "head" or not architecture.tied]
    embedded = BYTES_PER_ELEMENT[SIXTEEN] * architecture.embeddings / layout.tensor_parallel
    return sum(one.weights * weights.bytes_of(one.name) for one in held) + embedded


def cache_bytes(architecture: Architecture, weights: Weights, layout: Layout, context: float = 0.0) -> float:
    """Keys and values of one token on one GPU [byte].

    With a context: the mean over a sequence of so many tokens.  Windows keep fewer tokens; states of scans are kept once a sequence.
    """
    width, latent = BYTES_PER_ELEMENT[weights.cache], architecture.latent
    if latent:
        return architecture.attended * (latent.rank + latent.rope_dim) * width
    heads = max(architecture.kv_heads // layout.tensor_parallel, 1)
    kept = min(architecture.window / context, 1.0) if context else 1.0
    layers = architecture.attended - architecture.window_layers * (1.0 - kept)
    states = architecture.scan.on(layout.tensor_parallel).sequence_byte / context if architecture.scan and context else 0.0
    return layers * 2.0 * heads * architecture.head_dim * width + states


def _check(model: Architecture, step: Step) -> None:
    longest = max([step.context if step.sequences else 0.0, *(attended for _, attended in step.prompts)])
    if step.tokens < 1 or any(not 1 <= new <= attended for new, attended in step.prompts) or (step.sequences and step.context < 1.0):
        raise WorkloadError(f"{model.name}: a step needs tokens, each of which attends at least to itself: {step}")
    if model.longest and longest > model.longest:
        raise WorkloadError(f"{model.name}: {longest:.0f} tokens are beyond the context of {model.longest}; take fewer")


def _check_groups(model: Architecture, weights: Weights, layout: Layout) -> None:
    whole = {one.name: one.k for one in model.products(Layout())}
    for one in model.products(layout):
        narrow = [form for form, _ in weights.formats(one.name) if form != SIXTEEN and (one.name, form) != DIVIDED_GROUPS]
        if narrow and weights.group and one.k % weights.group and one.k != whole[one.name]:
            raise WorkloadError(
                f"{model.name}: engines load only whole groups of {weights.group} inputs in {weights.name}, not {one.k} ({one.name}); "
                "take fewer GPUs (--tensor-parallel), or more groups of experts (--expert-parallel)"
            )


# Products ---------------------------------------------------------------------------------------------------------------------------------


def _products(run: _Pass) -> Iterator[Launch]:
    """Products of all matrices other than experts; those of a latent vector depend on the phase."""
    for one in run.model.products(run.layout):
        if one.name.startswith("expert_"):
            continue
        if one.name == "kv_b":
            yield from _latent_products(run, one)
        else:
            yield from _linear(run, one, run.logits if one.name == "head" else run.step.tokens)


def _linear(run: _Pass, product: Product, rows: int) -> Iterator[Launch]:
    """Products with one kind of matrix; weights of bitsandbytes are widened before, or in registers for a single row.

    Measured products in fp8 hold the search for the scale of their inputs and the conversion.  A given scale, or one a token, saves the
    first, a kernel before that converts saves both: what is saved has a negative count.
    """
    for form, share in run.weights.formats(product.name):
        stored, given, count = form == WIDENED, form == "fp8_static", share * product.layers
        precision = SIXTEEN if stored else "fp8" if given else form
        one = run.operator("gemm", "linear", 1, rows, product.n, product.k, precision=precision)
        yield from ((kernel, count) for kernel in (widened(one, WIDENED_BYTE) if stored else (one,)))
        if given or (form == "fp8" and run.library != SCALES_TENSORS):
            yield run.operator("quantise", "compute_scale", rows, product.k), -count
        if given:
            yield run.operator("quantise", "quantise_static", rows, product.k, out="fp8"), -count * run.fused


def _latent_products(run: _Pass, product: Product) -> Iterator[Launch]:
    """Prompts expand their latent vectors to heads; decoding multiplies queries and results with the halves of the matrix, head by head."""
    latent, step, heads = run.model.latent, run.step, run.model.heads // run.layout.tensor_parallel
    if step.prompts:
        yield from _linear(run, product, round(step.together * sum(attended for _, attended in step.prompts)))
    if latent and step.sequences:
        yield run.operator("gemm", "bmm", heads, step.sequences, latent.rank, latent.plain_dim), product.layers
        yield run.operator("gemm", "bmm", heads, step.sequences, latent.value_dim, latent.rank), product.layers


def _attention(run: _Pass) -> Iterator[Launch]:
    """Attention of equal pieces of prompts in one kernel, and of all running sequences; in chunks, these are half way through one."""
    model, step, most = run.model, run.step, math.ceil(run.step.together)
    pieces = [("prefill", most, new, attended, step.together / most) for new, attended in step.prompts]
    if step.sequences:
        pieces.append(("decode", step.sequences, 1, max(round(step.context), 1), 1.0))
    heads, kv_heads = model.heads // run.layout.tensor_parallel, max(model.kv_heads // run.layout.tensor_parallel, 1)
    for name, batch, queries, context, share in pieces:
        if model.latent:
            yield run.operator("mla", f"mla_{name}", batch, queries, context, heads, cached=run.weights.cache), share * model.attended
            continue
        for window, layers in ((0, model.attended - model.window_layers), (model.window, model.window_layers)):
            if not layers:
                continue
            new, seen, bound, parts = queries, context, window if window < context else 0, 1.0  # a window without a bound holds all keys
            if bound and model.kind.window == "chunks":
                new, bound, parts = min(queries, window), 0, max(queries / window, 1.0)
                seen = window // 2 if name == "decode" else max((context - 1) % window + 1, new)
            shape = (batch, new, seen, heads, kv_heads, model.head_dim, bound, name == "prefill")
            yield run.operator("attention", name, *shape, cached=run.weights.cache), share * parts * layers


def _scans(run: _Pass) -> Iterator[Launch]:
    """Layers with a state: a pass over it for every running sequence; prompts multiply chunks of tokens among themselves and with it.

    Products: queries with keys, these scores with values, keys with values, queries with the state; where a token replaces what its key
    has in the state also keys with keys, the inverse of that, it with keys and with values, and keys with the state.
    Sources: flash-linear-attention (chunk_gated_delta_rule), mamba (ssd_combined).  8,192 tokens in 48 heads then take 0.70 ms on an H200;
    the first one's kernels take 0.65 on an H100 (flashinfer pull request 3902).
    """
    if run.model.scan is None:
        return
    own, step, tokens = run.model.scan.on(run.layout.tensor_parallel), run.step, run.step.tokens
    heads, layers = own.heads, own.layers
    keys, values, size = own.key_dim, own.value_dim, own.chunk
    yield run.operator("elementwise", "other", tokens * own.mixed, tokens * own.mixed), layers
    yield run.operator("elementwise", "silu", tokens * own.inner, 2 * tokens * own.inner), layers
    if step.sequences:
        state = step.sequences * own.inner * keys * own.state_byte // 2
        yield run.operator("elementwise", "other", state, state), STATE_PASSES * layers
    for new, _ in step.prompts:
        chunks = math.ceil(step.together * new / size)
        products = [
            (own.key_heads, size, size, keys),
            (heads, size, values, size),
            (heads, keys, values, size),
            (heads, size, values, keys),
        ]
        if own.delta:
            replaced = ((size, size, keys), (size, size, size), (size, keys, size), (size, values, size), (size, values, keys))
            products += [(heads, *one) for one in replaced]
        for heads, *sizes in products:
            yield run.operator("gemm", "bmm", heads * chunks, *sizes), layers


def _routed(run: _Pass) -> Iterator[Launch]:
    """Choice of experts, products (measured in fp8 with given scales) and weighted sum, of the tokens of all copies of the attention."""
    model, experts, layout = run.model, run.model.experts, run.layout
    if experts is None:
        return
    for precision, share in run.weights.formats("expert_up"):
        if precision == WIDENED:
            raise WorkloadError(f"{model.name}: experts in bitsandbytes have no known kernel; name other weights (--weights int4)")
        inner = layout.gpus // layout.expert_parallel
        sizes = (model.hidden, experts.inter, experts.chosen, experts.count, inner, layout.expert_parallel, run.skew, model.kind.gated)
        kernel = "fp8" if precision == "fp8_static" else WIDENED_IN_MARLIN.get((run.library, precision), precision)
        yield run.operator("moe", "moe", run.step.tokens * layout.copies, *sizes, precision=kernel), share * experts.layers


# Other kernels --------------------------------------------------------------------------------------------------------------------------


def _between(run: _Pass) -> Iterator[Launch]:
    """Element-wise kernels between the products of layers: (operator, written, read, count), in 16-bit elements."""
    model, tokens, gpus = run.model, run.step.tokens, run.layout.tensor_parallel
    passed, kind, experts = tokens * model.hidden, model.kind, model.experts
    attended, head_dim = model.attended, model.head_dim
    active = 0.5 if run.weights.static and run.fused else 1.0  # a static scale is applied where a kernel writes
    heads, kv_heads, latent = model.heads // gpus, max(model.kv_heads // gpus, 1), model.latent
    turned = tokens * ((heads + 1) * latent.rope_dim if latent else (heads + kv_heads) * head_dim)
    cached = tokens * (latent.rank + latent.rope_dim if latent else 2 * kv_heads * head_dim)
    rows: list[tuple[str, float, float, int]] = [
        ("other", (1.0 + active) * passed, 2.0 * passed, 2 * model.layers),
        ("other", passed, 2.0 * passed, 1),
        ("other", passed, passed, (kind.norms - 2) * model.layers),  # norms before the residual is added
        ("other", turned, turned, attended * (kind.qk_norm + (model.positions == 0))),  # norms of heads, positions
    ]
    if latent:
        normed = tokens * (latent.query_rank + latent.rank)
        rows.append(("other", normed, normed, attended))
    out = "" if run.weights.cache == SIXTEEN else run.weights.cache
    yield run.operator("elementwise", "typecast" if out else "other", cached, cached, out=out), attended
    if kind.gated_attention:
        rows.append(("silu", tokens * heads * head_dim, 2.0 * tokens * heads * head_dim, attended))
    inner = tokens * model.inter // gpus
    rows.append(("silu" if kind.gated else "gelu", inner * active, inner * (1.0 + kind.gated), model.dense_layers))
    if experts and experts.shared_inter:
        shared = tokens * experts.shared_inter // gpus
        rows += [("silu", shared * active, 2.0 * shared, experts.layers), ("add", passed, 2.0 * passed, experts.layers)]
    for name, written, read, count in rows:
        yield run.operator("elementwise", name, max(round(written), 1), read), count


def _ends(run: _Pass) -> Iterator[Launch]:
    """Embedding before the layers, greedy choice of the next tokens after them."""
    embedded, wide = run.step.tokens * run.model.hidden, run.logits * run.model.vocab
    yield run.operator("copy", "gather", embedded, embedded), 1
    yield run.operator("elementwise", "typecast", wide, wide, out="fp32"), 1
    yield run.operator("reduction", "max", run.logits, run.model.vocab, precision="fp32"), 1


def _collectives(run: _Pass) -> Iterator[Launch]:
    """Sums after attention and inner layer and after the embedding, parts of the logits, and tokens sent to experts and back."""
    model, layout, width = run.model, run.layout, BYTES_PER_ELEMENT[SIXTEEN]
    passed, gpus = run.step.tokens * model.hidden * width, layout.tensor_parallel
    if gpus > 1:
        yield run.operator("communication", "all_reduce", passed, gpus), 2 * model.layers + 1
        yield run.operator("communication", "all_gather", run.logits * -(-model.vocab // gpus) * gpus * width, gpus), 1
    if model.experts and layout.copies > 1:
        # A GPU gets a token once, however many of its experts it takes.
        sent = min(model.experts.chosen, layout.expert_parallel) * passed / gpus
        yield run.operator("communication", "all_to_all", max(round(sent), 1), layout.gpus), 2 * model.experts.layers
