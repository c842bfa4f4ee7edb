"""One cubin, assembled and inspected: the inspection notices each way in which a loop is not what it was meant to be."""

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
from microbench.kernel import Expectation, Support
from microbench.toolchain.compile import compile_kernels, disassemble, find_toolchain
from microbench.toolchain.inspect import InspectedEntry, body_complaint, histogram, loop_body, read_listings
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
    return InspectedEntry(name="k", registers=8, spilled_bytes=0, shared_bytes=0, body=body, reads=body)


def complaint_about(kernel, toolchain):
    return body_complaint(kernel.expectation, compile_kernels([kernel], "sm_90", "O3", toolchain).entries[kernel.name], "O3")


def test_the_loop_ends_at_its_branch_and_leaves_callees_out():
    assert read_listings("Fatal: not a cubin\n .section .nv.info,x\n /*0000*/ FADD R1, R1, R1 ;") == {}
    body = loop_body(read_listings(LISTING)["twice"])
    assert dict(histogram(body)) == {"BRA": 2, "CALL.REL.NOINC": 1, "FFMA": 1, "ISETP.NE.U32.AND": 1, "UIADD3": 1}


@pytest.mark.parametrize(
    ("level", "body", "expected", "complaint"),
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
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo V1.2.3; exit 0; }}\n{script}\n', encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "complaint"),
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
    found.ptxas.write_text("#!/bin/sh\n", encoding="utf-8")
    with pytest.raises(CompileError, match=r"ptxas gives no version; install it with: pip install 'wattprint\[ptx\]'"):
        find_toolchain()
    file.unlink()
    if not Path("/usr/local/cuda/bin/nvdisasm").exists():
        with pytest.raises(CompileError, match="nvdisasm is not installed; install it with"):
            find_toolchain()
