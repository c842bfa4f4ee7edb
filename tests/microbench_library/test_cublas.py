"""Products as cuBLAS is asked for them, computed by a library that follows its manual."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import make_operator
from microbench.errors import DeviceLostError, KernelFailedError, UnsupportedError
from microbench.layouts import LAYOUTS
from microbench.runners.cublas import WORKSPACE_BYTES, open_cublas
from microbench.runners.cupy_device import open_cupy_device
from tests.microbench_library.cuda_fake import PCI_ADDRESS, FakeCublas, World, fake_cupy
from tests.microbench_library.host_values import host_values, reference_product

TOLERANCE = {"fp64": 1e-12, "fp32": 1e-4, "tf32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}
COMPUTE_TYPES = {"fp64": 70, "tf32": 77}


def gemm(precision, name="linear", batch=1, m=8, n=8, k=8, **more):
    return make_operator("gemm", name, precision, batch=batch, m=m, n=n, k=k, **more)


@pytest.fixture(scope="module")
def device():
    with open_cupy_device(PCI_ADDRESS, fake_cupy(World())) as opened:
        yield opened


@given(
    st.sampled_from(("", *LAYOUTS)), st.sampled_from(sorted(TOLERANCE)), st.sampled_from(("linear", "bmm")),
    st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9),
)  # fmt: skip
def test_every_layout_computes_the_product(device, layout, precision, name, batch, m, n, k):
    library = FakeCublas(World())
    with open_cublas(library, device) as cublas:
        kernel = cublas.kernel(gemm(precision, name, batch, m, n, k), 9.0, layout)
        bound = kernel.bind(2, 3)
        bound.launches[1]()
        inputs, output = host_values(bound, 1)
    assert kernel.transpose == (layout or ("tn" if name == "linear" else "nn"))
    assert output == pytest.approx(reference_product(inputs, kernel.transpose), rel=TOLERANCE[precision], abs=TOLERANCE[precision])
    assert library.compute_types == [COMPUTE_TYPES.get(precision, 68)]
    assert library.workspace_bytes == WORKSPACE_BYTES


@pytest.mark.parametrize(
    "operator, capability, word",
    [
        (gemm("nvfp4"), 9.0, "nvfp4"),
        (gemm("bf16"), 7.5, "compute capability 8"),
        (gemm("fp16", cuda_cores=True), 9.0, "tensor cores"),
        (gemm("fp16", m=2**31), 9.0, "below 2"),
    ],
)
def test_what_cublas_lacks_is_refused_by_name(device, operator, capability, word):
    with open_cublas(FakeCublas(World()), device) as cublas, pytest.raises(UnsupportedError, match=word):
        cublas.kernel(operator, capability)


@pytest.mark.parametrize(
    "status, error",
    [(3, KernelFailedError), (13, DeviceLostError), (99, KernelFailedError)],
)
def test_a_status_becomes_the_error_it_stands_for(device, status, error):
    library = FakeCublas(World())
    with open_cublas(library, device) as cublas:
        bound = cublas.kernel(gemm("fp16"), 9.0).bind(1, 0)
        library.status = status
        with pytest.raises(error, match="8x8x8"):
            bound.launches[0]()
