"""Write gpt2-prefill.json: the operators of one GPT-2 small prefill, 8 prompts of 512 tokens.

    python examples/gpt2_prefill.py [BATCH LENGTH]

All numbers follow from the published configuration (12 layers, 768 wide, 12 heads, 3,072 inside the feed-forward,
50,257 words; Radford et al. 2019) and from the Hugging Face model in eager PyTorch: attention as separate kernels,
the tanh approximation of GELU as eight element-wise ones, bf16 throughout.  The name states the batch and the length,
which a sweep needs to compute others.  Use this file as a template for your own model.
"""

import sys
from pathlib import Path

from estimator.formats import write_workload
from estimator.transforms import INNER, LAYER, LIGHT
from estimator.vocabulary.workload import Operator, Workload, make_operator, merge_operators

LAYERS, WIDTH, HEADS, INNER_WIDTH, VOCABULARY = 12, 768, 12, 3072, 50257
PRECISION = "bf16"
DEFAULT_SIZE = (8, 512)


def linear(tokens: int, outputs: int, inputs: int) -> Operator:
    """A linear layer."""
    return make_operator("gemm", "linear", PRECISION, batch=1, m=tokens, n=outputs, k=inputs)


def stream(name: str, elements: int, inputs: int = 1, host_share: float = LIGHT) -> Operator:
    """An element-wise operator that reads `inputs` tensors of the size that it writes."""
    return make_operator("elementwise", name, PRECISION, elements=elements, reads=elements * inputs, host_share=host_share)


def copy(name: str, elements: int, host_share: float = INNER) -> Operator:
    """A copy, with or without a change of element order."""
    return make_operator("copy", name, PRECISION, elements=elements, reads=elements, host_share=host_share)


def norm(tokens: int) -> Operator:
    """A layer norm."""
    return make_operator("norm", "layernorm", PRECISION, rows=tokens, dim=WIDTH)


def attention(batch: int, length: int) -> list[Operator]:
    """Self-attention of one layer."""
    tokens, products, head_dim = batch * length, batch * HEADS, WIDTH // HEADS
    scores, hidden = products * length * length, tokens * WIDTH
    operands = [copy("contiguous", hidden), copy("transpose", hidden), copy("contiguous", hidden)] if batch > 1 else []
    return [
        linear(tokens, 3 * WIDTH, WIDTH),
        *operands,
        make_operator("gemm", "bmm", PRECISION, batch=products, m=length, n=length, k=head_dim),
        stream("scalar_div", scores),
        stream("where", scores, host_share=LAYER),
        make_operator("softmax", "softmax", PRECISION, rows=products * length, dim=length),
        make_operator("gemm", "bmm", PRECISION, batch=products, m=length, n=head_dim, k=length),
        copy("contiguous", hidden),
        linear(tokens, WIDTH, WIDTH),
    ]


def feed_forward(tokens: int) -> list[Operator]:
    """Feed-forward part of one layer: 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), an operator for each step."""
    inner = tokens * INNER_WIDTH
    gelu = ["scalar_mul", "scalar_pow", "scalar_mul", "add", "scalar_mul", "tanh", "scalar_mul", "mul"]
    steps = [stream(name, inner, inputs=2 if name in ("add", "mul") else 1) for name in gelu]
    return [linear(tokens, INNER_WIDTH, WIDTH), *steps, linear(tokens, WIDTH, INNER_WIDTH)]


def embedding(batch: int, length: int) -> list[Operator]:
    """Words of every token, positions once for all sequences, and their sum."""
    words, positions = batch * length * WIDTH, length * WIDTH
    total = make_operator("elementwise", "add", PRECISION, elements=words, reads=words + positions, host_share=LIGHT)
    return [copy("gather", words, LAYER), copy("gather", positions, LAYER), total]


def gpt2_prefill(batch: int, length: int) -> Workload:
    """One prefill of `batch` prompts of `length` tokens, with the logits of every token."""
    tokens = batch * length
    residual = stream("add", tokens * WIDTH, inputs=2)
    layer = [norm(tokens), *attention(batch, length), residual, norm(tokens), *feed_forward(tokens), residual]
    head = [norm(tokens), linear(tokens, VOCABULARY, WIDTH)]
    operators, counts = merge_operators([*embedding(batch, length), *layer * LAYERS, *head])
    name = f"gpt2-prefill-b{batch}-s{length}"
    notes = (f"GPT-2 small, {batch} prompts of {length} tokens, bf16, eager attention; written by gpt2_prefill.py",)
    return Workload(name=name, operators=operators, counts=counts, model_family="gpt2", notes=notes)


if __name__ == "__main__":
    size = tuple(int(word) for word in sys.argv[1:3]) if len(sys.argv) > 2 else DEFAULT_SIZE
    workload = gpt2_prefill(*size)
    stem = "gpt2-prefill" if size == DEFAULT_SIZE else workload.name
    write_workload(workload, Path(__file__).with_name(f"{stem}.json"))
