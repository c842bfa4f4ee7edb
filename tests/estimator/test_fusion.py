"""The runtime `compiled`: which calls merge, what a merged kernel reads and writes, and what a compiled model keeps of an eager one."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.tracing.calls import Call, Place, Tensor
from estimator.tracing.fusion import merged_calls
from estimator.tracing.models import TraceRequest
from estimator.tracing.rules import rule_of
from estimator.tracing.torch_trace import lower_calls
from estimator.vocabulary.work import operator_work, workload_work
from tests.estimator.estimating import fails, run
from tests.estimator.traced import DECODER, GPT2, WIDER, counted, need_torch, products, tally

ROWS, WIDTH = 64, 96


def tensor(rows=ROWS, width=WIDTH, dtype="bfloat16"):
    return Tensor(shape=(rows, width), strides=(width, 1), dtype=dtype)


class Tape:
    """Calls on matrices with named storages, in the order in which they are made."""

    def __init__(self):
        self.calls, self.numbers, self.shapes = [], {}, {}

    def place(self, name):
        storage, _, half = name.partition("/")
        number = self.numbers.setdefault(storage, len(self.numbers) + 1)
        whole = self.shapes.setdefault(storage, tensor())
        width = whole.shape[1] // 2 if half else whole.shape[1]
        size = whole.elements * (4 if whole.dtype == "float32" else 2)
        shown = Tensor(shape=(whole.shape[0], width), strides=whole.strides, dtype=whole.dtype)
        return shown, Place(number, width if half == "2" else 0, size)

    def call(self, name, out, *sources, shape=None, **numbers):
        read = [self.place(source) for source in sources]
        if shape is not None:
            self.shapes[out] = shape
        result, at = self.place(out)
        names = KEYS.get(name, ("self", "other", "third"))
        self.calls.append(
            Call(
                name=f"aten.{name}",
                inputs=tuple((key, one) for key, (one, _) in zip(names, read, strict=False)),
                outputs=(result,),
                numbers=tuple((key, (value,)) for key, value in numbers.items()),
                pointwise=name in ("add", "mul", "silu", "relu"),
                read=tuple(at for _, at in read),
                written=(at,),
            )
        )

    def product(self, out, source, width=WIDTH):
        self.shapes[f"weight {out}"] = tensor(self.place(source)[0].shape[1], width)
        self.call("mm", out, source, f"weight {out}", shape=tensor(width=width))

    def groups(self):
        return merged_calls(self.calls, [rule_of(call)(call) for call in self.calls])

    def bytes(self):
        """Reads and writes of the compiled operators that are no products [tensor of ROWS × WIDTH in bf16]."""
        pairs = counted(lower_calls(self.calls, fused=True))
        works = [operator_work(o) for o, count in pairs if o.family != "gemm" for _ in range(int(count))]
        unit = 2.0 * ROWS * WIDTH
        return [(work.read_byte / unit, work.write_byte / unit) for work in works]


KEYS = {"mm": ("self", "mat2"), "native_layer_norm": ("input",), "cat": ("tensors", "tensors"), "_embedding_bag": ("weight", "indices")}


def tape_of(text):
    """Calls such as `out = name source source`; `out[rows,width]` has another size, and `norm48` is of rows of 48."""
    tape = Tape()
    for line in text.split("; "):
        target, _, called, *sources = line.split()
        out, *size = re.findall(r"\w+", target)
        name, width = re.fullmatch(r"([a-z_]+)(\d*)", called).groups()
        shape = tensor(*map(int, size)) if size else None
        if name == "mm":
            tape.product(out, *sources, shape.shape[1] if shape else WIDTH)
        elif name == "norm":
            tape.call("native_layer_norm", out, *sources, normalized_shape=int(width or WIDTH))
        else:
            tape.call(name, out, *sources, shape=shape, **({"dim": 1} if name == "_softmax" else {}))
    return tape


ROTARY = "q = mm x; a = mul q cos; n[64,48] = neg q/2; t = cat n q/1; b = mul t sin; c = add a b; d = mm c"
CASES = [
    ("gate = mm x; s = silu gate; up = mm x; m = mul s up; down = mm m", [[0], [2], [1, 3], [4]], [(2, 1)]),
    ("r1 = add r0 x; n = norm r1; p = mm n; r2 = add r1 p; q = mm r2", [[0, 1], [2], [3], [4]], [(2, 2), (2, 1)]),
    ("a = relu x; b = mm a; c = add a b; d = mm c", [[0], [1], [2], [3]], [(1, 1), (2, 1)]),
    ("both[64,192] = mm x; s = silu both/1; m = mul s both/2; d = mm m", [[0], [1, 2], [3]], [(2, 1)]),
    (ROTARY, [[0], [1, 2, 3, 4, 5], [6]], [(3, 1)]),
    ("q = mm x; n[64,48] = relu q/1; t = cat n n; c = add q t; d = mm c", [[0], [1, 2, 3], [4]], [(1, 1)]),
    ("a = relu x; b[65,96] = add a y", [[0], [1]], None),
    ("a = mul x scale; b = _softmax a; c = relu b", [[0, 1, 2]], [(2, 1)]),
    ("a = relu x; b = add a y", [[0, 1]], [(2, 1)]),
    ("a[64,192] = constant_pad_nd x", [[0]], [(1, 2)]),
    ("a = _embedding_bag x y; b = _embedding_bag x z; c = cat a b", [[0], [1], [2]], None),
]


def test_the_bias_of_a_convolution_merges_with_what_reads_its_result():
    image, weight, bias = (
        Tensor(shape=shape, strides=strides, dtype="bfloat16")
        for shape, strides in (((2, 8, 16, 16), (2048, 1, 128, 8)), ((8, 8, 3, 3), (72, 9, 3, 1)), ((8,), (1,)))
    )
    places = [Place(number, 0, 2 * one.elements) for number, one in enumerate((image, weight, bias, image, image), 1)]
    convolution = Call(
        name="aten.convolution",
        inputs=(("input", image), ("weight", weight), ("bias", bias)),
        outputs=(image,),
        numbers=(("stride", (1, 1)), ("padding", (1, 1)), ("dilation", (1, 1)), ("groups", (1,))),
        read=tuple(places[:3]),
        written=(places[3],),
    )
    after = Call(name="aten.relu", inputs=(("self", image),), outputs=(image,), pointwise=True, read=(places[3],), written=(places[4],))
    lowered = lower_calls([convolution, after], fused=True)
    (merged,) = (operator_work(o) for o, count in counted(lowered) if o.family == "elementwise" for _ in range(int(count)))
    assert (merged.read_byte, merged.write_byte) == (2 * (image.elements + bias.elements), 2 * image.elements)


@pytest.mark.parametrize("calls, groups, moved", CASES)
def test_what_merges_and_what_it_moves(calls, groups, moved):
    tape = tape_of(calls)
    assert tape.groups() == groups
    if moved is not None:
        assert sorted(tape.bytes()) == sorted(moved)


def test_a_kernel_that_sums_rows_and_writes_them_whole_is_no_sum():
    tape = Tape()
    tape.shapes["x"] = tensor(dtype="float32")
    tape.call("sum", "total", "x", shape=tensor(width=1, dtype="float32"), dim=1)
    tape.call("mul", "scaled", "x", "total", shape=tensor())  # the gradient of a softmax, say, written in 16 bits
    (operator,) = (o for o, _ in counted(lower_calls(tape.calls, fused=True)))
    assert (operator.family, operator_work(operator).write_byte) == ("elementwise", 2.0 * ROWS * WIDTH)


def test_a_backward_pass_computes_again_what_one_kernel_of_the_forward_pass_needed():
    tape = tape_of("gate = mm x; s = silu gate; up = mm x; m = mul s up; down = mm m")
    loss, at = Tensor(shape=(), strides=(), dtype="bfloat16"), Place(99, 0, 2)
    tape.calls.append(Call(name="aten.ones_like", inputs=(("self", loss),), outputs=(loss,), read=(at,), written=(at._replace(number=98),)))
    tape.product("dm", "down")
    tape.call("mul", "ds", "dm", "s")
    tape.call("mul", "dg", "ds", "up")
    assert {(2.0, 1.0), (3.0, 1.0)} < set(tape.bytes())  # s is not written; the gradients read gate in its place


@pytest.mark.parametrize("rows, expected", [(16, [(16, 2051, 2048)]), (2048, [(2048 * 2056,) * 2, (2048, 2056, 2048)])])
def test_a_product_that_computes_rather_than_moves_is_padded_to_whole_loads(rows, expected):
    tape = Tape()
    tape.shapes["x"] = tensor(rows, 2048)
    tape.product("y", "x", width=2051)
    assert [tuple(o.shape)[-3:] for o, _ in counted(lower_calls(tape.calls, fused=True))] == expected


def random_tape(draw):
    known, lines = ["x", "y"], []
    for number in range(draw(st.integers(1, 25))):
        name = draw(st.sampled_from(["mm", "relu", "add", "norm"]))
        sources = [draw(st.sampled_from(known)) for _ in range(2 if name == "add" else 1)]
        lines.append(f"t{number} = {name} {' '.join(sources)}")
        known.append(f"t{number}")
    return tape_of("; ".join(lines))


@given(st.data())
def test_every_call_runs_once_and_the_kernels_can_run_one_after_another(data):
    tape = random_tape(data.draw)
    groups = tape.groups()
    assert sorted(place for group in groups for place in group) == list(range(len(tape.calls)))
    owner = {place: number for number, group in enumerate(groups) for place in group}
    writer = {call.written[0].number: place for place, call in enumerate(tape.calls)}
    waiting = {
        number: {owner[writer[at.number]] for place in group for at in tape.calls[place].read if at.number in writer} - {number}
        for number, group in enumerate(groups)
    }
    while waiting:
        ready = {number for number, needs in waiting.items() if not needs & waiting.keys()}
        assert ready, "kernels wait for one another"
        waiting = {number: needs for number, needs in waiting.items() if number not in ready}
    products_of = [place for place, call in enumerate(tape.calls) if call.name == "aten.mm"]
    assert all([place] in groups for place in products_of)
    eager, merged = (lower_calls(tape.calls, fused=fused) for fused in (False, True))
    moved = [
        sum(c * (w.read_byte + w.write_byte) for c, w in zip(one.counts, map(operator_work, one.operators), strict=True))
        for one in (eager, merged)
    ]
    assert moved[1] <= moved[0]
    assert sum(merged.counts) == len(groups) <= sum(eager.counts)


def test_a_list_of_operators_is_not_compiled():
    words = "examples/gpt2-prefill.json --gpu a100 -q --runtime"
    assert "--model" in fails(words, "compiled", status=2)
    assert run(words, "eager")[0] == 0


# With PyTorch ---------------------------------------------------------------------------------------------------------

SETTINGS = {
    "llama-3-8b": DECODER | WIDER | {"num_hidden_layers": 4},
    "gpt2": GPT2,
    "resnet-101": {"depths": [1, 1, 1, 1]},
    "mixtral-8x7b": DECODER | {"num_hidden_layers": 1},
}


def traced(model, **asked):
    need_torch()
    from estimator.tracing.torch_trace import trace_workload

    return trace_workload(TraceRequest(model=model, batch=2, sequence=24, settings=SETTINGS.get(model, {}), **asked))


@pytest.mark.parametrize("model", SETTINGS)
@pytest.mark.parametrize("phase", ["prefill", "train"])
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_a_compiled_model_keeps_its_products_and_moves_less(model, phase, attention):
    eager, merged = (traced(model, phase=phase, attention=attention, runtime=runtime) for runtime in ("eager", "compiled"))
    assert products(merged) == products(eager)
    assert tally(merged, "prefill") == tally(eager, "prefill")
    works = [workload_work(one) for one in (eager, merged)]
    assert works[1].flop == works[0].flop
    assert works[1].read_byte + works[1].write_byte < works[0].read_byte + works[0].write_byte
    assert sum(merged.counts) < sum(eager.counts)
    assert merged.footprint == eager.footprint
    assert merged.name == f"{eager.name}-compiled"


def test_a_layer_of_llama_has_the_kernels_of_the_compiler(monkeypatch):
    """Beside products and attention: addition and norm twice, rotary of queries, of keys with their cache, values' cache, SiLU · gate."""
    several = traced("llama-3-8b", attention="flash", runtime="compiled")
    monkeypatch.setitem(SETTINGS, "llama-3-8b", SETTINGS["llama-3-8b"] | {"num_hidden_layers": 5})
    more = traced("llama-3-8b", attention="flash", runtime="compiled")
    names = ("linear", "prefill")
    layer = {name: tally(more, name)[name] - tally(several, name)[name] for name in names}
    assert layer == {"linear": 7, "prefill": 1}
    assert sum(more.counts) - sum(several.counts) - sum(layer.values()) == 6
    tokens, inner = 2 * 24, SETTINGS["llama-3-8b"]["intermediate_size"]
    assert (tokens * inner, 2 * tokens * inner) in {o.shape for o in several.operators if o.operator == "other"}, "reads both, writes one"


WRAPPED = """
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)

    def forward(self, x):
        return self.layer(x).relu() * 2 + 1

def plain():
    return Small(), (torch.zeros(4, 32),)

def whole():
    return torch.compile(Small()), (torch.zeros(4, 32),)

def inner():
    return torch.nn.Sequential(torch.compile(Small()), Small()), (torch.zeros(4, 32),)

def itself():
    model = Small()
    model.compile()
    return model, (torch.zeros(4, 32),)

def calls():
    class Calls(Small):
        after = staticmethod(torch.compile(lambda x: x.relu() * 2 + 1))

        def forward(self, x):
            return self.after(self.layer(x))

    return Calls(), (torch.zeros(4, 32),)
"""


@pytest.mark.parametrize(
    "function, runtime", [("plain", ""), ("whole", "compiled"), ("inner", "compiled"), ("itself", "compiled"), ("calls", "")]
)
def test_a_model_of_torch_compile_has_that_runtime_unless_asked_otherwise(tmp_path, function, runtime):
    need_torch()
    path = tmp_path / "lab.py"
    path.write_text(WRAPPED)
    status, out, err = run(f"trace {path}:{function}")
    assert (status, json.loads(out)["name"].endswith("-compiled"), "runtime compiled-5" in err) == (0, bool(runtime), bool(runtime))
    assert ("traced as written" in err) == (function == "calls")
    eager = json.loads(run(f"trace {path}:{function} --runtime eager")[1])
    assert sum(o["count"] for o in eager["operators"] if o["family"] == "elementwise") == 3 * (1 + (function == "inner"))
