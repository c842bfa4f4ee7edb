"""The whole catalogue, assembled and disassembled for every architecture: each loop is what its kernel promises."""

from dataclasses import replace
from pathlib import Path

import pytest

from microbench.errors import CompileError, UnsupportedError
from microbench.kernel import ARCHITECTURES
from microbench.toolchain.compile import TOOLKIT, assembled, assembler_version, compile_kernels
from microbench.toolchain.inspect import body_complaint
from microbench.toolchain.ptx import module_text
from tests.microbench.golden import kernels_at
from tests.microbench.kernels import kernel_named
from tests.words import one_line


@pytest.mark.parametrize(
    ("level", "architecture"), [*(("O3", name) for name, one in ARCHITECTURES.items() if not one.needs), ("O0", "sm_80"), ("O0", "sm_120")]
)
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
        ("hfma2_k8_u64", "sm_52"),
        ("dp4a_k8_u64", "sm_60"),
        ("ldmatrix", "sm_70"),
    ],
)
def test_what_an_architecture_lacks_is_refused_in_one_line_that_names_both(name, architecture):
    with one_line(UnsupportedError, f"{name} cannot run on {architecture}: "):
        module_text([kernel_named(name)], architecture)


@pytest.mark.parametrize("version", ["12.9", "13.0"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_assembler_builds_the_catalogue_for_the_architectures_that_it_knows(architecture, version, toolchain):
    """Those without a disassembler here, too; a listed assembler builds all, another one none."""
    found = [
        path
        for path in (toolchain.ptxas, Path(TOOLKIT) / "bin" / "ptxas")
        if path.is_file() and assembler_version(path).startswith(version)
    ]
    if not found:
        pytest.skip(f"ptxas {version} is not installed")
    chosen, level = replace(toolchain, ptxas=found[0]), "O3"
    text = module_text(kernels_at(architecture, level), architecture)
    if version in ARCHITECTURES[architecture].ptxas:
        assert assembled(text, architecture, level, chosen)[0]
    else:
        with pytest.raises(CompileError, match=f"refuses the kernels for {architecture}"):
            assembled(text, architecture, level, chosen)
