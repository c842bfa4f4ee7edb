"""The whole catalogue, assembled and disassembled for every architecture: each loop is what its kernel promises."""

import json
from pathlib import Path

import pytest

from microbench.errors import UnsupportedError
from microbench.families import KERNELS, kernels_for
from microbench.kernel import ARCHITECTURES, OPTIMISATION_LEVELS
from microbench.toolchain.compile import Toolchain
from microbench.toolchain.inspect import body_complaint
from microbench.toolchain.ptx import module_text
from tests.microbench.golden import FOLDER, compiled, expected_line, golden_file, kernels_at, line


@pytest.mark.parametrize("level", OPTIMISATION_LEVELS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_supported_kernel_assembles_to_the_loop_that_it_promises(
    architecture: str, level: str, toolchain: Toolchain, cubin_cache: Path
) -> None:
    module = compiled(architecture, level, toolchain, cubin_cache)
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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_runs_on_an_architecture_or_is_refused_by_name(architecture: str) -> None:
    runs, refusals = kernels_for(architecture)
    assert len(runs) + len(refusals) == len(KERNELS)
    assert all(architecture in refusal and refusal.split()[0] in {kernel.name for kernel in KERNELS} for refusal in refusals)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("mma_e4m3", "sm_90"),
        ("mma_e4m3", "sm_100"),
        ("mma_e5m2", "sm_90"),
        ("mma_s4", "sm_90"),
        ("mma_b1", "sm_120"),
        ("wgmma_f16_n256", "sm_90"),
        ("wgmma_e4m3_n256", "sm_100"),
        ("tma_bulk", "sm_89"),
        ("badd2_k8_u64", "sm_80"),
        ("redux_add_k8_u16", "sm_75"),
        ("cp_async_cg", "sm_75"),
        ("vabsdiff4_k8_u64", "sm_120"),
    ],
)
def test_what_an_architecture_lacks_is_refused_in_one_line_that_names_both(name: str, architecture: str) -> None:
    kernel = next(kernel for kernel in KERNELS if kernel.name == name)
    with pytest.raises(UnsupportedError, match=f"{name} cannot run on {architecture}: ") as refused:
        module_text([kernel], architecture)
    assert "\n" not in str(refused.value)


def test_names_are_unique_and_valid_entries() -> None:
    names = [kernel.name for kernel in KERNELS]
    assert len(set(names)) == len(names)
    assert all(f".visible .entry {kernel.name}(" in kernel.text for kernel in KERNELS)


def test_the_instruction_table_is_covered() -> None:
    priced = {kernel.instruction for kernel in KERNELS}
    table = {
        "add.u32", "sub.s32", "min.s32", "max.u32", "mul.lo.u32", "mad.lo.u32", "mul.hi.u32", "mad.hi.u32", "mul.wide.u32", "div.s32",
        "rem.s32", "div.u32", "rem.u32", "abs.s32", "lop3.b32", "and.b32", "not.b32", "cnot.b32", "shl.b32", "shr.u32", "shr.s32",
        "shf.l.wrap.b32", "add.rn.f32", "sub.rn.f32", "min.f32", "mul.rn.f32", "fma.rn.f32", "div.rn.f32", "div.approx.ftz.f32",
        "add.rn.f64", "sub.rn.f64", "min.f64", "mul.rn.f64", "fma.rn.f64", "div.rn.f64", "add.rn.f16", "sub.rn.f16", "mul.rn.f16",
        "add.rn.f16x2", "sub.rn.f16x2", "mul.rn.f16x2", "fma.rn.f16x2", "addc.cc.u32", "subc.cc.u32", "madc.lo.cc.u32", "madc.hi.cc.u32",
        "mov.b32", "mov.b64", "rcp.rn.f32", "rcp.approx.ftz.f32", "sqrt.rn.f32", "sqrt.approx.ftz.f32", "rsqrt.approx.ftz.f32",
        "sin.approx.ftz.f32", "sin.approx.f32", "cos.approx.f32", "cos.approx.ftz.f32", "lg2.approx.ftz.f32", "ex2.approx.ftz.f32",
        "copysign.f32", "mul24.lo.u32", "mul24.hi.u32", "mad24.lo.u32", "sad.s32", "sad.u32", "popc.b32", "clz.b32", "bfind.u32",
        "bfe.u32", "bfi.b32", "brev.b32",
    }  # fmt: skip
    assert table <= priced
