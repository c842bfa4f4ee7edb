"""From operators to phases: each kernel as if it were alone, whichever tiles are known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import estimate, load_bundle, load_gpu, make_operator
from estimator.model.attention import Flash, framework_walk
from estimator.model.coefficients import CoefficientTable, coefficient_vector, group_key
from estimator.model.gemm import MatrixColumns, candidate_phases
from estimator.model.lowering import KnownTiles, lower, matrix_columns
from estimator.model.phases import OVERLAPPED, SERIAL, Phases
from estimator.model.streams import reduction_blocks
from estimator.model.tiling import tile_candidates
from estimator.model.timeline import kernel_seconds
from estimator.vocabulary.work import expert_load, operator_work
from estimator.vocabulary.workload import as_run, workload_as_run
from tests.estimator.estimating import MATRIX
from tests.estimator.synthetic import addition, attention, convolution, matmul, workload_of

COEFFICIENTS = coefficient_vector(MATRIX | {"epsilon_s": 0.0})
PRECISIONS = ("bf16", "fp32", "int8")
TILES = (np.nan, 32.0, 64.0, 128.0)
SPLITS = (np.nan, 1.0, 4.0)
H100 = load_gpu("h100-sxm")

products = st.tuples(st.sampled_from(PRECISIONS), *[st.integers(1, 5000) for _ in range(3)])
known_tiles = st.tuples(st.sampled_from(TILES), st.sampled_from(TILES), st.sampled_from(SPLITS))


@pytest.mark.parametrize("name", ["a100-pcie-40gb", "h100-sxm"])
@settings(max_examples=25)
@given(st.lists(st.tuples(products, known_tiles), min_size=1, max_size=5))
def test_a_product_keeps_what_is_known_of_its_tile_and_is_lowered_as_if_alone(name, drawn):
    gpu = load_gpu(name)
    operators = [matmul(m, n, k, precision) for (precision, m, n, k), _ in drawn]
    columns = np.array([tile for _, tile in drawn])
    known = KnownTiles(tile_m=columns[:, 0], tile_n=columns[:, 1], split=columns[:, 2])
    together = lower(operators, gpu, np.tile(COEFFICIENTS, (len(drawn), 1)), known)
    for i, operator in enumerate(operators):
        own = KnownTiles(**{field: getattr(known, field)[i : i + 1] for field in KnownTiles.__slots__})
        alone = lower([operator], gpu, COEFFICIENTS[None, :], own)
        tile_m, tile_n, _ = columns[i]
        assert np.isnan(tile_m * tile_n) or alone.tile_area[0] == tile_m * tile_n
        for field in Phases.__slots__:
            np.testing.assert_array_equal(getattr(together, field)[i], getattr(alone, field)[0], err_msg=field)


@pytest.mark.parametrize(
    "precision, weight, activation, rate, converts",
    [
        ("bf16", 2.0, 2.0, 989.4, False), ("fp8", 1.0, 1.0, 1978.9, True), ("fp8_static", 1.0, 1.0, 1978.9, False),
        ("fp8_block", 1.0, 1.03125, 1978.9, True), ("sq", 1.0, 1.0, 1978.9, True), ("int8_wo", 1.0, 2.0, 989.4, False),
        ("int4_wo", 0.516, 2.0, 989.4, False), ("w4a16_mxfp4", 0.531, 2.0, 989.4, False),
        ("w4a8_mxfp4_mxfp8", 0.531, 1.03125, np.nan, True),
    ],
)  # fmt: skip
def test_a_number_format_says_what_moves_how_fast_it_is_multiplied_and_whether_it_is_converted(
    precision, weight, activation, rate, converts
):
    operator, batched = (matmul(512, 4096, 8192, precision, operator=name) for name in ("linear", "bmm"))
    column = phases_of(operator)
    assert column["dram"] * H100.dram_bytes_per_s == pytest.approx(weight * 4096 * 8192, rel=1e-3)
    assert operator_work(operator).read_byte == pytest.approx((weight * 4096 + activation * 512) * 8192, rel=1e-3)
    assert 2 * 512 * 4096 * 8192 / (column["useful"] / H100.sm_clock_max_mhz / 1e6) == pytest.approx(rate * 1e12, rel=1e-3, nan_ok=True)
    assert (column["quantise"] > 0.0) == converts
    assert batched.precision == precision
    assert phases_of(batched)["quantise"] == 0.0


def phases_of(operator, gpu="h100-sxm"):
    lowered = lower([operator], load_gpu(gpu), COEFFICIENTS[None, :])
    return dict(zip((*OVERLAPPED, *SERIAL), [*lowered.overlapped[0], *lowered.serial[0]], strict=True)) | {"useful": lowered.ideal_math[0]}


EXPERTS = {"hidden": 2048, "inter": 1024, "topk": 4, "experts": 64, "tp": 1, "ep": 1, "skew": 0.0, "gated": 1}


def experts(tokens, **changes):
    return make_operator("moe", "moe", "bf16", tokens=tokens, **EXPERTS | changes)


@given(st.integers(1, 4000), st.integers(1, 4000), *map(st.sampled_from, ([1, 2, 8, 64], [0.0, 1.0, 1.2], [4, 24])))
def test_more_tokens_never_mean_less_work_for_experts_whose_shares_split_it(tokens, more, ep, skew, topk):
    few, many = (experts(count, ep=ep, skew=skew, topk=topk) for count in (tokens, tokens + more))
    assert expert_load(many).pairs >= expert_load(few).pairs * (1.0 - 1e-9)
    assert operator_work(many).flop >= operator_work(few).flop * (1.0 - 1e-9)
    whole, own = expert_load(experts(tokens, skew=skew, topk=topk)), expert_load(few)
    assert whole.pairs == pytest.approx(tokens * topk)  # none is lost where the fullest experts have all tokens
    assert own.pairs <= whole.pairs * (1.0 + 1e-9)
    assert own.experts <= EXPERTS["experts"] / ep
    if skew:
        assert own.pairs >= whole.pairs / ep * (1.0 - 1e-9)  # the GPU with the most work
    else:
        assert own.pairs == pytest.approx(max(tokens * topk / ep, 1.0))
    assert operator_work(few).write_byte >= tokens * EXPERTS["hidden"] * 2.0  # each GPU adds to the row of every token


def test_all_experts_together_are_their_products():
    assert expert_load(experts(4096)) == pytest.approx((64.0, 4096 * 4, 256.0))
    column, halved = (phases_of(experts(4096, tp=tp)) for tp in (1, 2))
    assert column["dram"] * H100.dram_bytes_per_s == pytest.approx(2.0 * 64 * 3 * 2048 * 1024)
    assert halved["useful"] == pytest.approx(column["useful"] / 2.0)


@pytest.mark.parametrize("library", ["", "vllm", "trtllm"])
@pytest.mark.parametrize(
    "gpu, precision, all_pairs",
    [
        *(("h100-sxm", *one) for one in (("bf16", False), ("fp8_block", False), ("int4_wo", True), ("w4a16_mxfp4", True))),
        ("l40s", "fp8_block", True),
        ("l40s", "fp8", False),
    ],
)
def test_kernels_of_marlin_and_triton_pass_the_pairs_of_all_gpus_under_any_library(gpu, precision, all_pairs, library):
    operators = [make_operator("moe", "moe", precision, tokens=4096, **EXPERTS | {"ep": ep}, library=library) for ep in (8, 1)]
    spread, alone = matrix_columns(operators, load_gpu(gpu)).output_byte
    assert (spread == alone) == all_pairs
    assert all_pairs or spread < alone / 4.0


@pytest.mark.parametrize(
    "operator, gpus, crossings",
    [("all_reduce", 2, 1.0), ("all_reduce", 8, 1.75), ("all_gather", 4, 0.75), ("reduce_scatter", 8, 0.875), ("all_to_all", 2, 0.5)],
)
def test_a_collective_moves_what_its_bus_bandwidth_counts(operator, gpus, crossings):
    asked, larger = (make_operator("communication", operator, "bf16", message_bytes=size, num_gpus=gpus) for size in (9e8, 18e8))
    column = phases_of(asked)
    assert column["link"] == pytest.approx(crossings * 9e8 / 450e9)
    assert phases_of(larger)["chunks"] > column["chunks"] > 0.0
    without = replace(H100, link_bytes_per_s=0.0)
    assert not np.isfinite(lower([asked], without, COEFFICIENTS[None, :]).ideal_math[0])


def test_latent_attention_reads_one_vector_a_token_for_all_heads():
    shape = {"batch": 8, "queries": 1, "context": 4096}
    one, all_heads = (make_operator("mla", "mla_decode", "bf16", heads=heads, **shape) for heads in (1, 128))
    vectors = 2.0 * 8 * 4096 * 576
    assert operator_work(one).read_byte == pytest.approx(vectors, rel=0.01)
    assert operator_work(all_heads).read_byte - vectors == pytest.approx(128 * (operator_work(one).read_byte - vectors))
    assert operator_work(all_heads).flop == 2.0 * 8 * 4096 * 128 * (576 + 512)
    expanded = operator_work(make_operator("mla", "mla_prefill", "bf16", batch=1, queries=1024, context=1024, heads=16))
    assert expanded.flop == pytest.approx(2.0 * 16 * (192 + 128) * 1024 * 1024 / 2.0, rel=1e-3)


@pytest.mark.parametrize(
    "kind, gpu, window, cache, library, joined",
    [
        ("decode", "l40s", 0, "bf16", "vllm", True),
        ("decode", "l40s", 0, "bf16", "", True),
        ("decode", "l40s", 128, "bf16", "vllm", False),
        ("decode", "l40s", 128, "fp8", "vllm", True),
        ("decode", "h100-sxm", 128, "bf16", "vllm", True),
        ("decode", "h100-sxm", 128, "bf16", "flash-attention", False),
        ("prefill", "l40s", 0, "bf16", "vllm", False),
        ("prefill", "l40s", 0, "fp8", "vllm", True),
    ],
)
def test_query_heads_of_a_key_head_share_a_block_where_their_library_joins_them(kind, gpu, window, cache, library, joined):
    """Then many query heads need no more blocks of math than one."""
    shape = {"batch": 64, "context": 512, "kv_heads": 4, "head_dim": 128, "window": window, "causal": 0}
    queries, named = 1 if kind == "decode" else 4, {"precision_kv": cache, "library": library}
    few, many = (phases_of(attention(queries, kind=kind, heads=heads, **named, **shape), gpu)["math"] for heads in (4, 64))
    assert (many == few) == joined


@pytest.mark.parametrize(
    "batch, context, kv_heads, head_dim, split",
    [
        # As an H200 ran them: flash_fwd_kernel, or flash_fwd_splitkv_kernel.
        *[(1, 80, 1, 64, False), (46, 48, 8, 128, False), (4, 80, 32, 128, False), (24, 14192, 24, 64, False), (63, 1056, 10, 128, False)],
        *[(8, 368, 2, 64, True), (2, 848, 2, 64, True), (13, 122, 8, 256, True), (9, 12656, 16, 128, True), (2, 15680, 64, 64, True)],
    ],
)
def test_pytorch_splits_a_cache_where_it_was_seen_to_split_it(batch, context, kv_heads, head_dim, split):
    keys, heads = np.array([float(context)]), np.array([float(batch * kv_heads)])
    walk = framework_walk(heads, keys, np.array([float(head_dim)]), load_gpu("h200-sxm"))
    assert bool(walk[0] < np.ceil(context / Flash.KEY_TILE)) == split


@pytest.mark.parametrize(
    "operator, reads, group",
    [
        ("add", 2e6, "elementwise.add.bf16"),
        ("add", 1e6 + 64, "copy.contiguous.bf16"),
        ("mul", 1e6, "copy.contiguous.bf16"),
        ("gelu", 1e6, "elementwise.gelu.bf16"),
    ],
)
def test_work_that_repeats_an_operand_runs_in_the_kernel_of_copies(operator, reads, group):
    found = group_key(make_operator("elementwise", operator, "bf16", elements=1e6, reads=reads))
    assert found.partition("@")[0] == group


CUDNN, OTHERS = ("h100-sxm", "b200-sxm", "b300-sxm"), ("a100-pcie-40gb", "l40s", "rtx-5090")


@pytest.mark.parametrize(
    "boards, details, library, run",
    [
        # PyTorch 2.11, sdp_utils.cpp: cuDNN's kernels on 9.0, 10.0 and 10.3 for heads that it takes, FlashAttention-2 elsewhere.
        (CUDNN + OTHERS, {}, "", ""),
        (OTHERS, {}, "flash-attention", ""),
        (CUDNN, {}, "flash-attention", "flash-attention"),
        (("h100-sxm",), {"head_dim": 256}, "", ""),
        (("b200-sxm",), {"head_dim": 136}, "", "flash-attention"),
        (("b200-sxm",), {"head_dim": 256}, "", "flash-attention"),
        (("h100-sxm",), {"head_dim": 68}, "", "flash-attention"),
        (("h100-sxm",), {"precision": "fp8"}, "", "flash-attention"),
        (("h100-sxm",), {}, "vllm", "vllm"),
    ],
)
def test_attention_of_pytorch_is_that_which_pytorch_prefers_on_the_board(boards, details, library, run):
    operator = attention(512, batch=4, library=library, **details)
    for board in boards:
        assert as_run(operator, load_gpu(board)) == replace(operator, library=run), board


@pytest.mark.parametrize("library, board, context, shape", [
    ("vllm", "a100", 4097.0, (8.0, 1.0, 1025.0, 16.0)), ("sglang", "l40s", 4096.0, (16.0, 1.0, 512.0, 16.0)),
    ("vllm", "a100", 2.0, (4.0, 1.0, 1.0, 16.0)),
    ("trtllm", "a100", 64.0, (2.0, 1.0, 64.0, 16.0)), ("vllm", "b200", 64.0, (2.0, 1.0, 64.0, 16.0)),
])  # fmt: skip
def test_parts_of_a_latent_context_are_decoded_apart(library, board, context, shape):
    decode = make_operator("mla", "mla_decode", "bf16", library=library, batch=2, queries=1, context=context, heads=16)
    assert as_run(decode, load_gpu(board)).shape == shape


@pytest.mark.parametrize(
    "kernel, changes, product", [(1, {}, True), (3, {"padding": 1}, False), (1, {"stride": 2}, False), (1, {"groups": 2}, False)]
)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_convolution_of_single_pixels_is_a_product(kernel, changes, product, precision):
    linear = matmul(8 * 28 * 28, 256, 64, precision)
    image = convolution(kernel, precision, height=28, width=28, filters=256, **changes)
    workload, bundle = workload_of(image, linear, counts=(2.0, 1.0)), load_bundle("h200-sxm")
    run = workload_as_run(workload)
    assert (run.operators == (linear,), sum(run.counts)) == (product, 3.0)
    times = [estimate(one, bundle)[0].latency_s for one in (workload, workload_of(linear, counts=(3.0,)))]
    assert (times[0] == times[1]) == product


def test_what_is_said_of_a_convolution_that_runs_as_a_product_names_the_product_s_size():
    image, same = convolution(1, batch=512, height=56, width=56, filters=256), matmul(512 * 56 * 56, 256, 64)  # merged with it
    found = estimate(workload_of(image, same, addition(64)), load_bundle("h100-sxm"))[0]
    assert any("m = 1.60563e+06 is outside the fitted range" in line for line in found.warnings)


@pytest.mark.parametrize("name", ["add", "mul", "div", "where"])
def test_a_repeated_operand_saves_bytes_and_costs_instructions(name):
    whole, repeated = (make_operator("elementwise", name, "bf16", elements=1 << 24, reads=share << 24) for share in (2, 1))
    columns = [phases_of(one) for one in (whole, repeated)]
    assert columns[1]["dram"] < columns[0]["dram"]
    assert columns[1]["issue"] > 1.5 * columns[0]["issue"]
    events = lower([whole, repeated], H100, np.tile(COEFFICIENTS, (2, 1))).events
    assert events[1, -2] > events[0, -2]
    assert events[1, -1] == events[0, -1]


@pytest.mark.parametrize(
    "board, own, ratio", [("a100-pcie-40gb", "", 1.0), ("h100-sxm", "", 1.0), ("h100-sxm", "flash-attention", 1.0 / 0.63)]
)
def test_flash_attention_2_has_the_rate_of_warps_and_other_attention_the_full_one(board, own, ratio):
    pair = [phases_of(attention(4096, batch=4, causal=0, library=library), board)["math"] for library in (own, "vllm")]
    assert pair[0] / pair[1] == pytest.approx(ratio)


@pytest.mark.parametrize("board, precision, share", [
    ("l4", "fp32", 0.75), ("a40", "fp32", 0.75), ("rtx-5090", "fp32", 0.75), ("a100-pcie-40gb", "fp32", 1.0), ("h100-sxm", "fp32", 1.0),
    ("t4", "fp32", 1.0), ("l4", "bf16", 1.0), ("l4", "fp64", 1.0),
])  # fmt: skip
def test_products_on_cuda_cores_share_a_datapath_with_integers_where_it_has_both(board, precision, share):
    gpu = load_gpu(board)
    reached = matrix_columns([matmul(512, 512, 512, precision)], gpu).flop_per_clock
    assert reached == share * gpu.matrix_flop_per_clock(precision, not gpu.on_tensor_cores(precision))


# Products whose rows do not start at multiples of 16 bytes -----------------------------------------------------------


@given(*[st.integers(1, 5000)] * 3, st.integers(1, 64))
def test_no_product_gets_faster_by_narrower_loads(m, n, k, batch):
    gpu = load_gpu("a100-pcie-40gb")
    columns = matrix_columns([matmul(m, n, k, operator="bmm", batch=batch)], gpu)
    loads = [replace(columns, access_byte=np.array([byte])) for byte in (16.0, 8.0, 4.0, 2.0)]
    seconds = [kernel_seconds(candidate_phases(one, tile_candidates(gpu, False), gpu), COEFFICIENTS, 1e9).min() for one in loads]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]


@pytest.mark.parametrize(
    "n, k, precision, byte",
    [
        (200, 64, "bf16", 16.0), (196, 64, "bf16", 8.0), (198, 64, "bf16", 4.0), (197, 64, "bf16", 2.0), (64, 197, "bf16", 2.0),
        (36, 256, "bf16", 8.0), (197, 64, "fp32", 16.0), (1001, 4096, "fp8", 16.0),
    ],
)  # fmt: skip
def test_a_lane_loads_as_much_as_all_rows_of_16_bits_along_n_and_k_are_multiples_of(n, k, precision, byte):
    """The number of tokens, 197, does not matter."""
    columns = matrix_columns([matmul(197, n, k, precision, operator="bmm", batch=16)], H100)
    assert columns.access_byte == byte


@pytest.mark.parametrize("precision, pads", [("fp8", True), ("fp8_block", True), ("int8", True), ("nvfp4", True), ("int8_wo", False)])
def test_products_of_8_bits_have_rows_of_multiples_of_16(precision, pads):
    columns = matrix_columns([matmul(8, 1001, 4097, precision), matmul(8, 1008, 4112, precision)], load_gpu("b200-sxm"))
    assert all(np.ptp(getattr(columns, name)) == 0.0 for name in MatrixColumns.__slots__) == pads


@pytest.mark.parametrize(
    "sequences, head_dim, measured_us",
    [(384, 64, 295.1), (384, 80, 346.6), (384, 88, 375.3), (1024, 64, 735.5), (1024, 80, 871.5), (1024, 88, 945.1), (512, 80, 451.6)],
)
def test_attention_over_197_tokens_takes_its_published_time(sequences, head_dim, measured_us):
    """Scaling, scores, softmax, result; bf16 on an A100, forward, "vanilla" (github.com/facebookresearch/xformers/pull/479)."""
    elements, bundle = sequences * 197 * head_dim, load_bundle("a100-pcie-40gb-eager")
    operators = [
        make_operator("elementwise", "scalar_mul", "bf16", elements=elements, reads=elements),
        matmul(197, 197, head_dim, operator="bmm", batch=sequences),
        make_operator("softmax", "softmax", "bf16", rows=sequences * 197, dim=197),
        matmul(197, head_dim, 197, operator="bmm", batch=sequences),
    ]
    coefficients, _ = CoefficientTable({name: group.coefficients for name, group in bundle.groups.items()}).rows(map(group_key, operators))
    seconds = kernel_seconds(lower(operators, bundle.gpu, coefficients), coefficients, 1.41e9)
    assert 1e6 * seconds.sum() == pytest.approx(measured_us, rel=0.18)


def test_schedulers_limit_depthwise_convolutions_alike_on_every_board():
    image = replace(convolution(3, padding=1, groups=64), operator="depthwise")
    clocks = [phases_of(image, gpu)["issue"] * load_gpu(gpu).num_sms for gpu in ("a100-pcie-40gb", "a10")]
    assert clocks[0] == pytest.approx(clocks[1])


SHIPPED = ("a100-sxm-80gb", "b200-sxm", "h100-sxm", "h200-sxm", "l40s")
FORMAT_KERNELS = {
    "linear": lambda precision: matmul(4096, 4096, 4096, precision),
    "thin": lambda precision: replace(convolution(1, batch=64, channels=256, height=56, width=56), precision=precision),
    "bmm": lambda precision: matmul(512, 512, 64, precision, operator="bmm", batch=32),
    "prefill": lambda precision: attention(2048, precision, batch=2, heads=16, kv_heads=16, head_dim=128),
    "decode": lambda precision: attention(1, precision, "decode", batch=16, context=2048, heads=32, head_dim=128),
}


def times_of(bundle, *operators):
    return [estimate(workload_of(one), bundle, host_launch_s=0.0)[0].latency_s for one in operators]


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("kernel", FORMAT_KERNELS)
def test_16_bits_take_equally_long_whichever_were_measured_and_products_in_tf32_twice_that(name, kernel):
    bf16, fp16, tf32 = times_of(load_bundle(name), *map(FORMAT_KERNELS[kernel], ("bf16", "fp16", "tf32")))
    assert fp16 == pytest.approx(bf16)
    assert 1.4 < tf32 / bf16 < 2.4 or kernel in ("prefill", "decode")


@pytest.mark.parametrize("name, gpu", [("v100-pcie-32gb", None), ("a10-eager", load_gpu("t4"))])
@pytest.mark.parametrize("kernel", FORMAT_KERNELS)
def test_tf32_is_fp32_on_a_board_that_has_none(name, gpu, kernel):
    tf32, fp32 = (estimate(workload_of(FORMAT_KERNELS[kernel](one)), load_bundle(name), gpu=gpu)[0] for one in ("tf32", "fp32"))
    assert tf32 == fp32


@pytest.mark.parametrize("name", [*SHIPPED, "a10-eager", "v100-pcie-32gb"])
@pytest.mark.parametrize("operator", ["linear", "bmm"])
def test_products_in_fp32_take_as_long_however_fast_the_tensor_cores_are(name, operator):
    bundle, product = load_bundle(name), matmul(512, 512, 512, "fp32", operator=operator, batch=1 if operator == "linear" else 32)
    rates = ({kind: share * rate for kind, rate in bundle.gpu.tensor_flop_per_clock.items()} for share in (1.0, 0.5))
    boards = (replace(bundle.gpu, name="other", tensor_flop_per_clock=one) for one in rates)
    whole, half = (estimate(workload_of(product), bundle, gpu=one, host_launch_s=0.0)[0].latency_s for one in boards)
    assert whole == pytest.approx(half)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("batch, context", [(1, 2048), (64, 1000)])
@pytest.mark.parametrize("cache", ["", "fp8"])
def test_heads_of_a_size_that_nobody_measured_take_no_longer_than_larger_ones(name, batch, context, cache):
    shape = {"batch": batch, "context": context, "heads": 64, "causal": 0, "library": "vllm", "precision_kv": cache}
    smaller, larger = times_of(load_bundle(name), *(attention(1, kind="decode", head_dim=size, **shape) for size in (96, 128)))
    assert smaller < 1.1 * larger


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm"])
@pytest.mark.parametrize("operator, queries", [("decode", 1), ("prefill", 1), ("prefill", 1152)])
def test_a_window_of_all_keys_is_none(name, operator, queries):
    shape = {"batch": 120, "context": 1152, "heads": 32, "head_dim": 128}
    none, wide = times_of(load_bundle(name), *(attention(queries, kind=operator, window=w, **shape) for w in (0, 4096)))
    assert none == pytest.approx(wide, rel=0.05)  # the residual tier knows windows


@given(st.integers(1, 9000), st.integers(0, 9000), st.integers(0, 9000), st.sampled_from([0, 1]))
def test_attention_reads_the_keys_that_its_queries_see_and_no_others(queries, before, window, causal):
    operator = attention(queries, context=queries + before, window=window, causal=causal)
    work = operator_work(operator)
    assert phases_of(operator)["dram"] * H100.dram_bytes_per_s == pytest.approx(work.read_byte + work.write_byte)


@pytest.mark.parametrize(
    "rows, dim, blocks, loads",
    [
        # Reduce.cuh: 16 warps a block, a row each; a block a row from 8,192 on; from 131,072 on as many as fill 132 SMs, at most a
        # block for 8,192 elements and at least one for 131,072.
        (1000, 64, 63, 1),
        (3, 64, 2, 1),
        (200, 8191, 13, 64),
        (200, 8192, 200, 4),
        (1, 131071, 1, 64),
        (1, 151936, 19, 4),
        (300, 151936, 600, 38),
        (2000, 1 << 20, 16000, 64),
    ],
)
def test_a_sum_has_the_blocks_that_pytorch_gives_it(rows, dim, blocks, loads):
    operator = make_operator("reduction", "sum", "fp32", rows=rows, dim=dim)
    assert reduction_blocks(operator, load_gpu("h200-sxm"))[:3] == (blocks, 4.0, loads)
