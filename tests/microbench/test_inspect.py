"""Kernels assembled and inspected: each way in which a loop can differ from its kernel is noticed, and none of the catalogue does."""

import hashlib
import sys
import tomllib
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from microbench.errors import CompileError
from microbench.families.catalogue import instruction_kernel
from microbench.kernel import ARCHITECTURES, Expectation, Support
from microbench.toolchain.compile import TOOLKIT, assembled, assembler_version, compile_kernels, disassemble, find_toolchain
from microbench.toolchain.inspect import InspectedEntry, body_complaint, histogram, loop_body, read_listings
from microbench.toolchain.ptx import module_text
from tests.microbench.golden import kernels_at
from tests.microbench.kernels import kernel_named

LISTING = """
	.section	.text.twice,"ax",@progbits
	.sectionflags	@"SHF_BARRIERS=1"
.text.twice:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   FFMA R2, R2, R3, R4 ;
        /*0020*/              @!P1 BRA `(.L_x_1) ;
        /*0030*/                   CALL.REL.NOINC `($__slow) ;
.L_x_1:
        /*0040*/                   UIADD3 UR4, UR4, -0x1, URZ ;
        /*0050*/                   ISETP.NE.U32.AND P0, PT, RZ, UR4, PT ;
        /*0060*/               @P0 BRA `(.L_x_0) ;
        /*0070*/               @P0 CALL.REL.NOINC `(.L_x_2) ;
.L_x_2:
        /*0080*/                   EXIT ;
$__slow:
.L_x_3:
        /*0090*/                   FADD R2, R2, R2 ;
        /*00a0*/                   BRA `(.L_x_3);
	.section	.nv.info,"",@"SHT_CUDA_INFO"
        /*0000*/                   FADD R2, R2, R2 ;
"""


def entry(words):
    """A loop of so many instructions, such as "64 FFMA 3 MOV", beside its own control."""
    counts = iter(words.split())
    body = {"ISETP": 1, "UIADD3": 1, "BRA": 1} | {name: int(count) for count, name in zip(counts, counts, strict=True)} if words else {}
    return InspectedEntry(registers=8, spilled_bytes=0, shared_bytes=0, body=body, reads=body)


def complaint_about(kernel, toolchain):
    return body_complaint(kernel.expectation, compile_kernels([kernel], "sm_90", "O3", toolchain).entries[kernel.name], "O3")


def test_the_loop_ends_at_its_branch_and_leaves_callees_out():
    assert read_listings("Fatal: not a cubin\n .section .nv.info,x\n /*0000*/ FADD R1, R1, R1 ;") == {}
    body = loop_body(read_listings(LISTING)["twice"])
    assert dict(histogram(body)) == {"BRA": 2, "CALL.REL.NOINC": 1, "FFMA": 1, "ISETP.NE.U32.AND": 1, "UIADD3": 1}


@pytest.mark.parametrize(
    "level, body, expected, complaint",
    [
        ("O3", "", {}, "no loop"),
        ("O3", "60 FFMA", {}, "60 of FFMA in the loop, 64 promised"),
        ("O3", "64 FFMA 3 MOV", {}, "3 of 70 instructions are MOV"),
        ("O3", "64 FFMA 2 UIADD3", {}, "uniform datapath"),
        ("O3", "64 FFMA 1 CALL.REL.NOINC", {}, "emulated"),
        ("O3", "64 FFMA 1 LDL", {}, "local memory"),
        ("O3", "64 FFMA 1 A 1 B 1 C 1 D", {}, "are not the promised ones"),
        ("O3", "64 FFMA", {}, ""),
        ("O3", "64 FFMA2", {}, "0 of FFMA"),
        ("O3", "64 FFMA 8 CALL.REL.NOINC", {"calls": True}, ""),
        ("O3", "64 FFMA 64 FADD", {"companions": ("FADD",)}, ""),
        ("O0", "64 FFMA 40 MOV", {}, ""),
        ("O0", "16 FFMA 40 MOV", {}, "16 of FFMA"),
    ],
)
def test_each_departure_from_the_promised_loop_has_its_complaint(level, body, expected, complaint):
    promise = Expectation(opcodes=("FFMA",), fewest=64, most=64, **expected)
    said = body_complaint(promise, entry(body), level)
    assert complaint in said
    assert bool(said) == bool(complaint)


def test_work_on_values_that_are_one_for_all_threads_escapes_to_the_uniform_datapath(toolchain):
    row = tomllib.loads("""
name = "uniform"
instruction = "mad.lo.u32"
templates = ["mad.lo.u32 u, u, active_lanes, left;"]
breaker = "add.u32 {d}, {d}, u;"
every = 8
start = {kind = "u32", high = 9}
temporaries = {u = "b32"}
opcodes = ["IMAD"]
companions = ["adders", "MOV"]
""")
    assert complaint_about(instruction_kernel(row), toolchain)


def test_emulated_fp8_products_of_a_warp_are_noticed_on_hopper(toolchain):
    assert complaint_about(replace(kernel_named("mma_e4m3"), support=Support()), toolchain)


KERNELS = (kernel_named("ffma_k8_u64"), kernel_named("lds_chase"))


def test_what_was_inspected_is_the_cubin_that_is_handed_over(toolchain):
    module = compile_kernels(KERNELS, "sm_80", "O3", toolchain)
    assert module.digest == hashlib.sha256(module.cubin).hexdigest()
    listings = read_listings(disassemble(module.cubin, toolchain))
    assert {name: dict(histogram(loop_body(listings[name]))) for name in module.entries} == {
        name: dict(entry.body) for name, entry in module.entries.items()
    }
    assert module.entries["lds_chase"].shared_bytes == 16384
    assert module.entries["ffma_k8_u64"].registers >= 16


def program(path, script):
    """A stand-in for the assembler or the disassembler that says its version and then does what the script says."""
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo V1.2.3; exit 0; }}\n{script}\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "script, complaint",
    [
        ("exit 0", r"ptxas .* writes no cubin for sm_80; install it with"),
        ("printf 'error \\377\\033[31m\\n' >&2; exit 1", r"refuses the kernels for sm_80: error \ufffd\?\[31m$"),
        ("kill -SEGV $$", "refuses the kernels for sm_80: ended by signal 11"),
    ],
)
def test_an_assembler_that_misbehaves_is_one_line(script, complaint, toolchain, tmp_path):
    broken = replace(toolchain, ptxas=program(tmp_path / "ptxas", script))
    with pytest.raises(CompileError, match=complaint) as refused:
        compile_kernels(KERNELS[:1], "sm_80", "O3", broken)
    assert str(refused.value).isprintable()


def test_a_kernel_that_the_disassembler_does_not_show_is_named(toolchain, tmp_path):
    text = "printf '\\t.section\\t.text.other,\\n\\377\\n'"
    blind = replace(toolchain, nvdisasm=program(tmp_path / "nvdisasm", text))
    with pytest.raises(CompileError, match=r"ffma_k8_u64 is not in what nvdisasm and ptxas"):
        compile_kernels(KERNELS, "sm_80", "O3", blind)


def test_a_toolkit_that_is_not_on_the_path_is_found(tmp_path, monkeypatch):
    """A machine with a card often has CUDA in its folder and neither the wheels nor the folder on the PATH."""
    wheelless = ModuleType("nvidia")
    wheelless.__spec__ = ModuleSpec("nvidia", None)
    monkeypatch.setitem(sys.modules, "nvidia", wheelless)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    for name in ("ptxas", "nvdisasm"):
        file = program(tmp_path / "bin" / name, "exit 0")
    found = find_toolchain()
    assert found.ptxas_version == "1.2.3"
    assert (found.ptxas, found.nvdisasm) == (tmp_path / "bin" / "ptxas", tmp_path / "bin" / "nvdisasm")
    found.ptxas.write_text("#!/bin/sh\n")
    with pytest.raises(CompileError, match=r"ptxas gives no version; install it with: pip install 'wattprint\[ptx\]'"):
        find_toolchain()
    file.unlink()
    if not Path("/usr/local/cuda/bin/nvdisasm").exists():
        with pytest.raises(CompileError, match="nvdisasm is not installed; install it with"):
            find_toolchain()


# Machine code of the kernels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "level, architecture", [*(("O3", name) for name, one in ARCHITECTURES.items() if not one.needs), ("O0", "sm_80"), ("O0", "sm_120")]
)
def test_every_supported_kernel_assembles_to_the_loop_that_it_promises(architecture, level, toolchain):
    kernels = kernels_at(architecture, level)
    module = compile_kernels(kernels, architecture, level, toolchain)
    assert set(module.entries) == {kernel.name for kernel in kernels}
    complaints = {kernel.name: body_complaint(kernel.expectation, module.entries[kernel.name], level) for kernel in kernels}
    assert {name: complaint for name, complaint in complaints.items() if complaint} == {}


@pytest.mark.parametrize(
    "name, architecture",
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
def test_what_an_architecture_lacks_is_refused_in_one_line_that_names_it(name, architecture):
    assert kernel_named(name).refusal(architecture).startswith(f"cannot run on {architecture}: ")


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
    chosen, level, one = replace(toolchain, ptxas=found[0]), "O3", ARCHITECTURES[architecture]
    text = module_text(kernels_at(architecture, level), architecture)
    if version not in one.ptxas:
        with pytest.raises(CompileError, match=f"refuses the kernels for {architecture}"):
            assembled(text, architecture, level, chosen)
    elif one.needs or chosen != toolchain:  # all others are assembled and inspected above
        assert assembled(text, architecture, level, chosen)[0]
