"""Dispatched calls become operators: recorded calls of real models, and calls made up for one rule each.  No PyTorch."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import WorkloadError
from estimator.tracing.calls import ATTENTION, ATTENTION_BACKWARD, Call, Tensor
from estimator.tracing.torch_trace import lower_calls
from estimator.vocabulary.work import operator_work
from tests.estimator.traced import counted
from tests.words import one_line

MODELS = ("gpt2", "qwen2-flash", "gpt2-train-fp16", "opt-fp16", "resnet", "resnet-train", "mixtral", "qwen2-decode")


@pytest.fixture(scope="module")
def golden(repository):
    return json.loads((repository / "tests" / "golden" / "tracing" / "calls.json").read_text())


def call_from_document(document):
    return Call(
        name=document["name"],
        inputs=tuple((name, of_row(row)) for name, *row in document["inputs"]),
        outputs=tuple(of_row(row) for row in document["outputs"]),
        numbers=whole_numbers(document.get("numbers", {})),
        pointwise=document.get("pointwise", False),
    )


def whole_numbers(named):
    return tuple((name, tuple(value) if isinstance(value, list | tuple) else (value,)) for name, value in named.items())


def of_row(row):
    return Tensor(shape=tuple(row[0]), strides=tuple(row[1]), dtype=row[2])


def recorded(golden, model):
    distinct = [call_from_document(document) for document in golden[model]["calls"]]
    return [distinct[number] for number in golden[model]["order"]]


def tensor(*shape, dtype="bfloat16", strides=None):
    if strides is None:
        strides, step = (), 1
        for size in reversed(shape):
            strides, step = (step, *strides), step * size
    return Tensor(shape=shape, strides=strides, dtype=dtype)


def call(name, inputs, *outputs, pointwise=False, **numbers):
    pairs = [(key, item) for key, value in inputs.items() for item in (value if isinstance(value, list) else [value])]
    return Call(name=name, inputs=tuple(pairs), outputs=outputs, numbers=whole_numbers(numbers), pointwise=pointwise)


def only(lowered):
    assert len(lowered.operators) == 1, lowered
    return lowered.operators[0]


def convolution(batch=2, channels=8, size=16, filters=12, kernel=3, stride=1, padding=1, groups=1, dtype="bfloat16", **numbers):
    out = (size + 2 * padding - kernel) // stride + 1
    return call(
        "aten.convolution",
        {
            "input": tensor(batch, channels, size, size, dtype=dtype),
            "weight": tensor(filters, channels // groups, kernel, kernel, dtype=dtype),
        },
        tensor(batch, filters, out, out, dtype=dtype),
        **{"stride": (stride, stride), "padding": (padding, padding), "dilation": (1, 1), "transposed": False, "groups": groups} | numbers,
    )


# Recorded models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_recorded_calls_become_the_operators_of_the_golden_file(golden, model):
    lowered = lower_calls(recorded(golden, model))
    found = [[f"{o.family}.{o.operator}", o.precision, o.precision_out, list(o.shape), count] for o, count in counted(lowered)]
    assert found == golden[model]["operators"]


@pytest.mark.parametrize("length, passes", [(7, 1.0), (4096, 1.0), (4097, 8.0)])
def test_a_long_row_is_sorted_in_a_pass_for_each_byte_of_a_key(length, passes):
    keys = tensor(3, length, dtype="int64")
    lowered = lower_calls([call("aten.sort", {"self": keys}, keys, keys, dim=-1)])
    names = [f"{operator.family}.{operator.operator}" for operator in lowered.operators]
    assert names == ["copy.contiguous", "elementwise.other", "elementwise.other"]
    assert lowered.counts == (1.0, 1.0, passes)
    assert lowered.operators[2].shape == (6 * length, 6 * length), "values and places are read and written together"


@pytest.mark.parametrize(
    "name, inputs, accumulate, reads",
    [
        ("aten.scatter", {"index": tensor(6, 4, dtype="int64"), "src": tensor(6, 4)}, 0, 24 + 4 * 24),
        ("aten.scatter_add", {"index": tensor(6, 4, dtype="int64"), "src": tensor(6, 4)}, 0, 24 + 24 + 4 * 24),
        ("aten.index_put", {"indices": [tensor(6, dtype="int64")], "values": tensor(6, 4)}, 0, 24 + 4 * 6),
        ("aten.index_put", {"indices": [tensor(6, dtype="int64")], "values": tensor(6, 4)}, 1, 24 + 24 + 4 * 6),
    ],
)
def test_a_scatter_reads_its_rows_and_indices_and_where_it_adds_what_is_there(name, inputs, accumulate, reads):
    lowered = lower_calls([call(name, {"self": tensor(9, 4), **inputs}, tensor(9, 4), accumulate=accumulate)])
    assert [one.shape for one in lowered.operators if one.operator == "gather"] == [(24, reads)]


# Rules ----------------------------------------------------------------------------------------------------------------


def test_products_of_fp32_run_on_cuda_cores_unless_tf32_is_allowed():
    product = call("aten.mm", {"self": tensor(8, 4, dtype="float32"), "mat2": tensor(4, 2, dtype="float32")}, tensor(8, 2, dtype="float32"))
    plain, narrow = only(lower_calls([product])), only(lower_calls([product], tf32={"gemm"}))
    assert (plain.precision, plain.cuda_cores) == ("fp32", True)
    assert (narrow.precision, narrow.cuda_cores) == ("tf32", False)


@pytest.mark.parametrize(
    "a, b",
    [
        (tensor(1, 8, 4), tensor(1, 4, 2)),
        (tensor(2, 4, 4), tensor(2, 4, 2, strides=(0, 2, 1))),
        (tensor(4, 2, 4, strides=(0, 4, 1)), tensor(4, 4, 2)),
    ],
)
def test_a_batch_with_one_matrix_has_the_kernel_of_one_product(a, b):
    """As PyTorch launches a batch of one: `torch.einsum` with a weight, or a module that calls `bmm`, is a linear layer."""
    plain = call("aten.mm", {"self": tensor(8, 4), "mat2": tensor(4, 2)}, tensor(8, 2))
    assert only(lower_calls([call("aten.bmm", {"self": a, "mat2": b}, tensor(8, 2))])) == only(lower_calls([plain]))


@pytest.mark.parametrize(
    "summand, beta, reads",
    [(tensor(2), 1, []), (tensor(8, 2), 1, [16 + 16]), (tensor(8, 2, strides=(0, 1)), 1, [2 + 16]), (tensor(8, 2), 0, [])],
)
def test_what_a_product_is_added_to_is_copied_but_for_a_bias(summand, beta, reads):
    sides = {"mat1": tensor(8, 4), "mat2": tensor(4, 2)}
    lowered = lower_calls([call("aten.addmm", {"self": summand, **sides}, tensor(8, 2), beta=beta)])
    assert [one["reads"] for one in lowered.operators if one.operator == "contiguous"] == reads


def test_tokens_are_spread_over_as_many_experts_as_there_are_rows():
    def grouped(rows):
        return only(lower_calls([call("aten._grouped_mm", {"self": tensor(rows, 64), "mat2": tensor(8, 64, 32)}, tensor(rows, 32))]))

    assert grouped(2).shape == (2, 1, 32, 64)
    assert grouped(20).shape == (8, 3, 32, 64)
    gradient = call("aten._grouped_mm", {"self": tensor(64, 20), "mat2": tensor(20, 32)}, tensor(8, 64, 32))
    assert only(lower_calls([gradient])).shape == (8, 64, 32, 3)
    assert only(lower_calls([gradient])).operator == "linear", "experts are layers with weights, not products of activations"


@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3, 5, 7]), st.integers(1, 3), st.integers(0, 2))
def test_a_convolution_has_the_multiplications_of_a_dilated_one_with_as_many_results(batch, channels, kernel, stride, padding):
    plain, dilated = (
        next(o for o in lower_calls([convolution(batch, channels, 16, 6, kernel, stride, padding, dilation=spread)]).operators)
        for spread in ((1, 1), (1, 2))
    )
    assert (plain.family, dilated.family) == ("conv", "conv")
    assert operator_work(plain).flop == operator_work(dilated).flop


@pytest.mark.parametrize(
    "image, kernel, out, numbers",
    [
        ((100,), (31,), (100,), {"stride": (1,), "padding": (15,)}),
        ((100,), (5,), (48,), {"stride": (2,)}),
        ((16, 16), (3, 3), (16, 16), {"stride": (1, 1), "padding": (2, 2), "dilation": (2, 2)}),
        ((16, 16), (4, 4), (32, 32), {"stride": (2, 2), "padding": (1, 1), "transposed": True}),
        ((8, 16, 16), (3, 3, 3), (8, 16, 16), {"stride": (1, 1, 1), "padding": (1, 1, 1)}),
    ],
)
@pytest.mark.parametrize("groups", [1, 8, 64])
def test_convolutions_of_all_kinds_read_their_images_once_and_not_for_each_tap(image, kernel, out, numbers, groups):
    tensors = {"input": tensor(2, 64, *image), "weight": tensor(64, 64 // groups, *kernel)}, tensor(2, 64, *out)
    lowered = lower_calls([call("aten.convolution", *tensors, groups=groups, **numbers)])
    (one,) = (operator for operator in lowered.operators if operator.operator != "layout")
    work, pixels, taps = operator_work(one), [math.prod(image), math.prod(out)], math.prod(kernel) * 64 // groups
    flop = 2 * 2 * 64 * pixels["transposed" not in numbers] * taps
    assert (one.operator, work.flop) == ("depthwise" if groups == 64 else "conv2d", flop)
    assert work.read_byte + work.write_byte == pytest.approx(2 * 64 * (2 * sum(pixels) + taps), rel=0.35)


def test_images_that_are_channels_last_are_not_turned():
    plain = convolution()
    batch, channels, height, width = plain.tensor("input").shape
    turned = tensor(batch, channels, height, width, strides=(channels * height * width, 1, width * channels, channels))
    lowered = [lower_calls([one]) for one in (plain, replace(plain, inputs=(("input", turned), ("weight", plain.tensor("weight")))))]
    assert [sum(o.operator == "layout" for o in one.operators) for one in lowered] == [2, 1]


READ, WRITTEN = 2 * 8 * 16 * 16, 2 * 12 * 16 * 16


@pytest.mark.parametrize("dilation", [(1, 1), (1, 2)])
@pytest.mark.parametrize(
    "dtype, tf32, forward, of_image, of_weight",
    [
        ("bfloat16", (), [READ, WRITTEN], [WRITTEN, READ], [READ, WRITTEN]),
        ("float32", ("conv",), [READ], [WRITTEN], [READ, WRITTEN]),
        ("float32", (), [], [], []),
    ],
)
def test_convolutions_on_tensor_cores_read_channels_last_and_in_16_bit_write_so(dtype, tf32, forward, of_image, of_weight, dilation):
    plain = convolution(dtype=dtype, dilation=dilation)
    inputs = {"grad_output": plain.outputs[0], "input": plain.tensor("input"), "weight": plain.tensor("weight")}

    def turned(one):
        return sorted(o["elements"] for o, n in counted(lower_calls([one], tf32=tf32)) if o.operator == "layout" for _ in range(int(n)))

    assert turned(plain) == sorted(forward)
    for mask, expected in (((1, 0, 0), of_image), ((0, 1, 0), of_weight), ((1, 1, 1), [*of_image, *of_weight])):
        backward = call("aten.convolution_backward", inputs, *inputs.values(), **dict(plain.numbers) | {"output_mask": mask})
        assert turned(backward) == sorted(expected)


@pytest.mark.parametrize("groups, added", [(1, [2 * 8 * 16 * 16]), (8, [])])
def test_the_bias_of_a_dense_convolution_is_added_by_a_kernel_of_its_own(groups, added):
    plain = convolution(filters=8, groups=groups)
    biased = replace(plain, inputs=(*plain.inputs, ("bias", tensor(8))))
    found = [[o["elements"] for o in lower_calls([one]).operators if o.operator == "add"] for one in (plain, biased)]
    assert found == [[], added]


def test_a_maximum_writes_its_position_of_eight_bytes_too():
    image, out = tensor(2, 8, 16, 16), (2, 8, 8, 8)
    pool = call("aten.max_pool2d_with_indices", {"self": image}, tensor(*out), tensor(*out, dtype="int64"))
    assert operator_work(only(lower_calls([pool]))).write_byte == (2 + 8) * math.prod(out)


def test_a_group_norm_reads_its_tensor_for_the_statistics_and_again_to_scale_it():
    image = tensor(2, 12, 16, 16)
    norm = call("aten.native_group_norm", {"input": image}, image, N=2, group=3)
    found = {o.operator: o for o in lower_calls([norm]).operators}
    assert found["moments"].shape == (6, 4 * 256)
    assert sum(operator_work(o).read_byte for o in found.values()) >= 2 * 2 * image.elements


@pytest.mark.parametrize("shape, kernels", [((), 2), ((64, 64), 1)])
def test_a_loss_of_elements_computes_each_in_parallel_before_their_mean(shape, kernels):
    """One thread that computed them all would take milliseconds."""
    loss = call("aten.mse_loss", {"self": tensor(64, 64), "target": tensor(64, 64)}, tensor(*shape))
    each, *mean = lower_calls([loss]).operators
    assert (each["elements"], each["reads"], 1 + len(mean)) == (64 * 64, 2 * 64 * 64, kernels)


def test_sums_over_bags_read_every_row_that_they_add_and_train_it():
    table, indices = tensor(1000, 64), tensor(320, dtype="int64")
    bags = call("aten._embedding_bag", {"weight": table, "indices": indices, "offsets": tensor(32, dtype="int64")}, tensor(32, 64))
    gradient = call("aten._embedding_bag_backward", {"grad": tensor(32, 64), "indices": indices}, table)
    assert only(lower_calls([bags])).shape == (32 * 64, 320 * 64 + 4 * 320)
    assert (320 * 64, 2 * 320 * 64) in [o.shape for o in lower_calls([gradient]).operators]


@pytest.mark.parametrize(
    "name, read, written",
    [
        ("upsample_nearest2d", [(2, 8, 16, 16)], [(2, 8, 32, 32)]),
        ("upsample_bilinear2d", [(2, 8, 16, 16)], [(2, 8, 8, 8)]),
        ("grid_sampler_2d", [(2, 8, 16, 16), (2, 16, 16, 2)], [(2, 8, 16, 16)]),
        ("col2im", [(2, 8 * 9, 256)], [(2, 8, 16, 16)]),
        ("cummax", [(64, 64)], [(64, 64), (64, 64, "int64")]),
    ],
)
def test_what_interpolates_folds_and_scans_reads_and_writes_each_tensor_once(name, read, written):
    def tensors(shapes):
        return [tensor(*(s for s in shape if s != "int64"), dtype="int64" if "int64" in shape else "bfloat16") for shape in shapes]

    one = only(lower_calls([call(f"aten.{name}", {"self": tensors(read)}, *tensors(written))]))
    passed = operator_work(one)
    sizes = [math.prod(s for s in shape if s != "int64") * (8 if "int64" in shape else 2) for shape in (*read, *written)]
    assert passed.read_byte + passed.write_byte == sum(sizes)


def test_gradients_write_all_their_results():
    image = tensor(2, 8, 16, 16)
    slopes = call("aten._prelu_kernel_backward", {"grad_output": image, "self": image, "weight": tensor(8)}, image, image)
    assert operator_work(only(lower_calls([slopes]))).write_byte == 2 * 2 * image.elements


@pytest.mark.parametrize(
    "name, inputs, outputs, numbers, expected",
    [
        ("native_layer_norm_backward", {"grad_out": (64,), "input": (64,)}, [(64,)] * 3, {"normalized_shape": [64]},
         {"other": (64, 128), "sum": (128, 1)}),
        ("native_group_norm_backward", {"grad_out": (2, 12, 8, 8), "input": (2, 12, 8, 8)}, [(12,)] * 2, {"N": 2, "group": 3},
         {"other": (1536, 3072), "sum": (24, 128)}),
        ("nll_loss_backward", {"grad_output": (), "self": (6, 90)}, [(6, 90)], {}, {"other": (540, 1)}),
        ("constant_pad_nd", {"self": (6, 90)}, [(6, 100)], {}, {"other": (600, 1), "contiguous": (540, 540)}),
        ("slice_backward", {"grad_output": (6, 90)}, [(6, 100)], {}, {"other": (600, 1), "contiguous": (540, 540)}),
        ("slice_backward", {"grad_output": (6, 0)}, [(6, 100)], {}, {"other": (600, 1)}),
    ],
)  # fmt: skip
def test_gradients_and_compositions_have_the_kernels_that_pytorch_launches(name, inputs, outputs, numbers, expected):
    """Of norms the sums over rows, of losses no log-probabilities, of slices zeros and a copy."""
    tensors = {key: tensor(*shape) for key, shape in inputs.items()}, *(tensor(*shape) for shape in outputs)
    assert {o.operator: o.shape for o in lower_calls([call(f"aten.{name}", *tensors, **numbers)]).operators} == expected


def test_fused_attention_costs_the_host_one_launch_each_way_and_that_of_one_query_is_decoding():
    def lowered(name, queries):
        inputs = {key: tensor(2, 12, queries if key == "query" else 128, 64) for key in ("query", "key", "value")}
        return lower_calls([call(name, inputs, tensor(2, 12, queries, 64), causal=True, window=0)])

    forward, backward = (lowered(name, 128) for name in (ATTENTION, ATTENTION_BACKWARD))
    assert backward.counts[0] * only(backward).host_share == pytest.approx(only(forward).host_share)
    decode = only(lowered(ATTENTION, 1))
    assert (decode.operator, decode["queries"], decode["causal"]) == ("decode", 1, 0)


def test_an_optimizer_step_writes_every_parameter_in_as_few_launches_as_the_lists_allow():
    lists = {name: [tensor(1_000_000)] * 100 for name in ("self", "other")}
    lowered = lower_calls([call("aten._foreach_add_", lists)])
    assert only(lowered).operator == "add"
    assert lowered.counts == (5.0,)  # 100 tensors of 16 chunks, 320 chunks a launch
    assert lowered.counts[0] * only(lowered).shape[0] == 1e8


def test_what_no_rule_knows_is_named_and_counted():
    odd = call("lab.fancy_kernel", {"x": tensor(4, 4)}, tensor(4, 4))
    lowered = lower_calls([odd, odd, call("lab.scaled_tanh", {"x": tensor(4, 4)}, tensor(4, 4), pointwise=True)])
    assert [(item.name, item.count, item.elements) for item in lowered.unknown] == [("lab.fancy_kernel", 2, 16)]
    assert only(lowered).operator == "other"  # the framework says that it works place by place


def test_views_memory_and_empty_tensors_launch_nothing():
    calls = [
        call("aten._unsafe_view", {"self": tensor(4)}, tensor(2, 2)),
        call("aten.empty", {}, tensor(8)),
        call("aten.cat", {"tensors": [tensor(0)]}, tensor(0)),
    ]
    assert lower_calls(calls).operators == ()


def test_a_type_without_a_precision_is_refused_by_name():
    with one_line(WorkloadError):
        lower_calls([call("aten.mul", {"self": tensor(4, dtype="bits1x8")}, tensor(4, dtype="bits1x8"), pointwise=True)])
