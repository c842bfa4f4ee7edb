"""The whole catalogue, assembled and disassembled for every architecture: each loop is what its kernel promises."""

import pytest

from microbench.errors import UnsupportedError
from microbench.families import kernel_named
from microbench.kernel import ARCHITECTURES
from microbench.toolchain.compile import compile_kernels
from microbench.toolchain.inspect import body_complaint
from microbench.toolchain.ptx import module_text
from tests.microbench.golden import kernels_at


@pytest.mark.parametrize(("level", "architecture"), [*(("O3", one) for one in ARCHITECTURES), ("O0", "sm_80"), ("O0", "sm_120")])
def test_every_supported_kernel_assembles_to_the_loop_that_it_promises(architecture, level, toolchain):
    kernels = kernels_at(architecture, level)
    module = compile_kernels(kernels, architecture, level, toolchain)
    assert set(module.entries) == {kernel.name for kernel in kernels}
    complaints = {kernel.name: body_complaint(kernel.expectation, module.entries[kernel.name], level) for kernel in kernels}
    assert {name: complaint for name, complaint in complaints.items() if complaint} == {}


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("mma_e4m3", "sm_90"),
        ("wgmma_f16_n256", "sm_90"),
        ("tma_bulk", "sm_89"),
        ("badd2_k8_u64", "sm_80"),
        ("vabsdiff4_k8_u64", "sm_120"),
    ],
)
def test_what_an_architecture_lacks_is_refused_in_one_line_that_names_both(name, architecture):
    with pytest.raises(UnsupportedError, match=f"{name} cannot run on {architecture}: ") as refused:
        module_text([kernel_named(name)], architecture)
    assert "\n" not in str(refused.value)
