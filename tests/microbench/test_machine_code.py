"""The whole catalogue, assembled and disassembled for every architecture: each loop is what its kernel promises."""

import json

import pytest

from microbench.errors import UnsupportedError
from microbench.families import kernel_named
from microbench.kernel import ARCHITECTURES
from microbench.toolchain.compile import Toolchain
from microbench.toolchain.inspect import body_complaint
from microbench.toolchain.ptx import module_text
from tests.microbench.golden import FOLDER, compiled, expected_line, golden_file, kernels_at, line


@pytest.mark.parametrize(("level", "architecture"), [*(("O3", one) for one in ARCHITECTURES), ("O0", "sm_80"), ("O0", "sm_120")])
def test_every_supported_kernel_assembles_to_the_loop_that_it_promises(architecture: str, level: str, toolchain: Toolchain) -> None:
    module = compiled(architecture, level, toolchain)
    kernels = kernels_at(architecture, level)
    assert set(module.entries) == {kernel.name for kernel in kernels}
    complaints = {kernel.name: body_complaint(kernel.expectation, module.entries[kernel.name], level) for kernel in kernels}
    assert {name: complaint for name, complaint in complaints.items() if complaint} == {}

    path = golden_file(toolchain)
    if not path.is_file():
        pytest.skip(f"no golden file for {module.compiler}; known are {', '.join(sorted(file.stem for file in FOLDER.glob('*.json')))}")
    golden = json.loads(path.read_text(encoding="utf-8"))
    known = {kernel.name: expected_line(golden, level, kernel.name, architecture) for kernel in kernels}
    assert {name: line(module.entries[name]) for name in known} == known


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
def test_what_an_architecture_lacks_is_refused_in_one_line_that_names_both(name: str, architecture: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{name} cannot run on {architecture}: ") as refused:
        module_text([kernel_named(name)], architecture)
    assert "\n" not in str(refused.value)
