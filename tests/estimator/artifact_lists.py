"""Operator lists in the EnergAIzer artifact's format, built from published model configurations.

For models whose recorded lists are not at hand: their order and their fields follow the artifact's trace parser.
"""


def gemm(batch, m, n, k, *, precision="bf16", tensor=True):
    query = {"batch": batch, "dimM": m, "dimN": n, "dimK": k, "precM": precision, "precA": precision, "useTensorCore": tensor}
    return [query, ["gemm", "tc" if tensor else "cuda", f"{precision}_{precision}"]]


def linear(tokens, outputs, inputs):
    return gemm(1, outputs, tokens, inputs)


def elementwise(name, size, precision="bf16"):
    return [{"dim": size, "op": name, "prec": precision}, ["elementwise"]]


def softmax(rows, dim, precision="bf16"):
    return [{"batch": rows, "dim": dim, "prec": precision}, ["softmax", precision]]


def layernorm(rows, dim):
    return [{"batch": rows, "dim": dim, "prec": "bf16"}, ["layernorm", "bf16"]]


def conv(batch, channels, size, filters, kernel, stride, padding):
    out = (size + 2 * padding - kernel) // stride + 1
    entry = gemm(1, batch * out * out, filters, channels * kernel * kernel)
    entry[0] |= {"b": batch, "m": filters, "c": channels, "hw": size, "rs": kernel, "stride": stride, "padding": padding}
    return [entry[0], ["conv2d", *entry[1][1:]]]


def sdpa(batch, heads, length, head_dim, ratio=1):
    query = {
        "batch_size": batch, "num_heads": heads, "seq_len": length, "head_dim": head_dim, "multi_query_ratio": ratio,
        "precM": "bf16", "precA": "bf16", "useTensorCore": True, "fusion_approx_method": "flash_v2",
    }  # fmt: skip
    return [query, ["sdpa"]]


def wide_softmax(rows, dim):
    """A softmax in fp32 of bf16 scores, with its two conversions, in the order in which the parser writes them."""
    size = rows * dim
    casts = [elementwise("typecast_to_fp32", size), elementwise("typecast_to_bf16", size, "fp32")]
    return [*casts, softmax(rows, dim, "fp32")]


def rms_norm(tokens, hidden):
    size = tokens * hidden
    return [
        elementwise("unspecified_scalar", size, "fp32"),
        elementwise("scalar_add", tokens, "fp32"),
        elementwise("unspecified_scalar", tokens, "fp32"),
        elementwise("pointwise_mul", size, "fp32"),
        elementwise("scalar_mul", size),
    ]


def rotary(size):
    return [elementwise("pointwise_mul", size), elementwise("pointwise_mul", size), elementwise("pointwise_add", size)]


def qwen2(batch, length, *, layers=28):
    """Qwen2-1.5B: 1,536 wide, 12 heads of 128 with 2 for keys and values, 8,960 inside."""
    hidden, heads, kv_heads, head_dim, inner = 1536, 12, 2, 128, 8960
    tokens, products = batch * length, batch * heads
    scores = products * length * length
    entries = [gemm(batch, head_dim // 2, length, 1, precision="fp32", tensor=False)]
    entries += [elementwise("scalar_mul", tokens * head_dim, "fp32")] * 2
    layer = [
        *rms_norm(tokens, hidden),
        linear(tokens, hidden, hidden),
        linear(tokens, kv_heads * head_dim, hidden),
        linear(tokens, kv_heads * head_dim, hidden),
        *rotary(tokens * hidden),
        *rotary(tokens * kv_heads * head_dim),
        gemm(products, length, length, head_dim),
        elementwise("scalar_mul", scores),
        elementwise("pointwise_add", scores),
        *wide_softmax(products * length, length),
        gemm(products, length, head_dim, length),
        linear(tokens, hidden, hidden),
        elementwise("pointwise_add", tokens * hidden),
        *rms_norm(tokens, hidden),
        linear(tokens, inner, hidden),
        elementwise("silu", tokens * inner),
        linear(tokens, inner, hidden),
        elementwise("pointwise_mul", tokens * inner),
        linear(tokens, hidden, inner),
        elementwise("pointwise_add", tokens * hidden),
    ]
    return [*entries, *layer * layers, *rms_norm(tokens, hidden)]
