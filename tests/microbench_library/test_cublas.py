"""Products as cuBLAS is asked for them, computed by a library that follows its manual."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.vocabulary.workload import make_operator
from microbench.errors import DeviceLostError, DeviceMemoryError, KernelFailedError, UnsupportedError
from microbench.layouts import LAYOUTS
from microbench.runners.cublas import WORKSPACE_BYTES, Product, open_cublas, reference_product
from microbench.runners.cupy_device import CupyDevice, open_cupy_device
from tests.microbench_library.cuda_fake import PCI_ADDRESS, FakeCublas, World, fake_cupy

TOLERANCE = {"fp64": 1e-12, "fp32": 1e-4, "tf32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}


@pytest.fixture(scope="module")
def device() -> Iterator[CupyDevice]:
    with open_cupy_device(PCI_ADDRESS, fake_cupy(World())) as opened:
        yield opened


@given(
    layout=st.sampled_from(LAYOUTS),
    precision=st.sampled_from(sorted(TOLERANCE)),
    batch=st.integers(1, 3),
    m=st.integers(1, 9),
    n=st.integers(1, 9),
    k=st.integers(1, 9),
)
def test_every_layout_computes_the_product(device: CupyDevice, layout: str, precision: str, batch: int, m: int, n: int, k: int) -> None:
    product = Product(batch=batch, m=m, n=n, k=k, layout=layout, precision=precision, precision_out=precision)
    with open_cublas(FakeCublas(World()), device) as cublas:
        bound = cublas.product_kernel(product, 1).bind(2, 3)
        bound.launches[1]()
        values = bound.host_values(1)
    assert values.output == pytest.approx(reference_product(values, layout), rel=TOLERANCE[precision], abs=TOLERANCE[precision])


@pytest.mark.parametrize(
    ("operator", "precision", "compute", "layout"),
    [("linear", "bf16", 68, "tn"), ("linear", "tf32", 77, "tn"), ("bmm", "fp32", 68, "nn"), ("bmm", "fp64", 70, "nn")],
)
def test_an_operator_gets_its_layout_and_arithmetic(device: CupyDevice, operator: str, precision: str, compute: int, layout: str) -> None:
    library = FakeCublas(World())
    with open_cublas(library, device) as cublas:
        kernel = cublas.kernel(make_operator("gemm", operator, precision, batch=2, m=3, n=4, k=5), 9.0)
        kernel.bind(1, 0).launches[0]()
    assert kernel.transpose == layout
    assert library.compute_types == [compute]
    assert library.workspace_bytes == WORKSPACE_BYTES


@pytest.mark.parametrize(
    ("precision", "more", "capability", "word"),
    [
        ("nvfp4", {}, 9.0, "nvfp4"),
        ("bf16", {}, 7.5, "compute capability 8"),
        ("fp16", {"cuda_cores": True}, 9.0, "tensor cores"),
        ("fp32", {"precision_out": "fp16"}, 9.0, "fp16"),
    ],
)
def test_what_cublas_lacks_is_refused_by_name(
    device: CupyDevice, precision: str, more: dict[str, bool], capability: float, word: str
) -> None:
    operator = make_operator("gemm", "linear", precision, batch=1, m=8, n=8, k=8, **more)
    with open_cublas(FakeCublas(World()), device) as cublas, pytest.raises(UnsupportedError, match=word):
        cublas.kernel(operator, capability)


@pytest.mark.parametrize(
    ("status", "error"),
    [(3, DeviceMemoryError), (15, UnsupportedError), (13, DeviceLostError), (14, KernelFailedError), (99, KernelFailedError)],
)
def test_a_status_becomes_the_error_it_stands_for(device: CupyDevice, status: int, error: type[Exception]) -> None:
    library = FakeCublas(World())
    with open_cublas(library, device) as cublas:
        bound = cublas.kernel(make_operator("gemm", "linear", "fp16", batch=1, m=8, n=8, k=8), 9.0).bind(1, 0)
        library.status = status
        with pytest.raises(error, match="8x8x8"):
            bound.launches[0]()
