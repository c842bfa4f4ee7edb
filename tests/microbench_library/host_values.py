"""Operands and results of launches on the host, and what they should give."""

import numpy as np


def on_host(array):
    """Numbers of PyTorch's, CuPy's or NumPy's memory as float64; 16 bits without a sign are bf16."""
    if hasattr(array, "detach"):
        return array.detach().to("cpu").double().numpy()
    host = array.get() if hasattr(array, "get") else np.asarray(array)
    return (host.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(float) if host.dtype == np.uint16 else host.astype(float)


def host_values(bound, index):
    """Operands and result of a buffer set."""
    *inputs, output = map(on_host, bound.arrays(index))
    return inputs, output


def softmax(x):
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def layernorm(x, weight, bias):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias


def attended(q, k, v):
    """Plain attention; operands are [batch, token, head, number], the result has heads first."""
    q, k, v = (np.swapaxes(x, 1, 2) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v


def reference_product(inputs, layout):
    """Expected result of a product; shape (batch, m, n), without the batch where the operands have none (fp8)."""
    a, b = inputs
    return (np.swapaxes(a, -2, -1) if layout[1] == "t" else a) @ (np.swapaxes(b, -2, -1) if layout[0] == "t" else b)
