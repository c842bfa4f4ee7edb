"""Operands and results of launches on the host, and the product that they should give."""

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


def reference_product(inputs, layout):
    """Expected result of a product; shape (batch, m, n)."""
    a, b = inputs
    return (np.swapaxes(a, 1, 2) if layout[1] == "t" else a) @ (np.swapaxes(b, 1, 2) if layout[0] == "t" else b)
