"""Compilation: one cubin, inspected; the cache gives back what it was given, or nothing."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from microbench.compile import Toolchain, compile_kernels, disassemble, find_toolchain
from microbench.errors import CompileError, UnsupportedError
from microbench.families import kernel_named
from microbench.inspect import histogram, loop_body, read_listings

KERNELS = (kernel_named("ffma_k8_u64"), kernel_named("lds_chase"))


def test_what_was_inspected_is_the_cubin_that_is_handed_over(toolchain: Toolchain) -> None:
    module = compile_kernels(KERNELS, "sm_80", "O3", toolchain)
    assert module.digest == hashlib.sha256(module.cubin).hexdigest()
    listings = read_listings(disassemble(module.cubin, toolchain))
    assert {name: dict(histogram(loop_body(listings[name]))) for name in module.entries} == {
        name: dict(entry.body) for name, entry in module.entries.items()
    }
    assert module.entries["lds_chase"].shared_bytes == 16384
    assert module.entries["ffma_k8_u64"].registers >= 16


def test_compiling_twice_gives_the_same_bytes(toolchain: Toolchain) -> None:
    first, second = (compile_kernels(KERNELS, "sm_90a", "O0", toolchain) for _ in range(2))
    assert first == second


def test_the_cache_gives_back_what_was_compiled(toolchain: Toolchain, tmp_path: Path) -> None:
    first = compile_kernels(KERNELS, "sm_86", "O3", toolchain, tmp_path)
    gone = replace(toolchain, ptxas=tmp_path / "gone", nvdisasm=tmp_path / "gone")
    assert compile_kernels(KERNELS, "sm_86", "O3", gone, tmp_path) == first
    with pytest.raises(CompileError):
        compile_kernels(KERNELS[:1], "sm_86", "O3", gone, tmp_path)
    with pytest.raises(CompileError):
        compile_kernels(KERNELS, "sm_86", "O0", gone, tmp_path)


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"{", b'{"entries": 3}', b"[]", b"null"])
@pytest.mark.parametrize("suffix", [".cubin", ".json"])
def test_a_damaged_cache_is_compiled_anew(damage: bytes, suffix: str, toolchain: Toolchain, tmp_path: Path) -> None:
    first = compile_kernels(KERNELS[:1], "sm_75", "O3", toolchain, tmp_path)
    for file in tmp_path.glob(f"*{suffix}"):
        file.write_bytes(damage)
    assert compile_kernels(KERNELS[:1], "sm_75", "O3", toolchain, tmp_path) == first


def test_a_text_that_the_assembler_refuses_is_one_line(toolchain: Toolchain) -> None:
    broken = replace(KERNELS[0], text=KERNELS[0].text.replace("fma.rn.f32 d0", "fmaa.rn.f32 d0"))
    with pytest.raises(CompileError, match=r"ptxas .* refuses the kernels for sm_80: line \d+") as refused:
        compile_kernels([broken], "sm_80", "O3", toolchain)
    assert "\n" not in str(refused.value)


def test_unknown_architectures_and_levels_are_named(toolchain: Toolchain) -> None:
    with pytest.raises(UnsupportedError, match="'ampere' is no architecture; known are sm_75"):
        compile_kernels(KERNELS, "ampere", "O3", toolchain)
    with pytest.raises(CompileError, match="'O9' is unknown; take O3 or O0"):
        compile_kernels(KERNELS, "sm_80", "O9", toolchain)
    with pytest.raises(CompileError, match="no kernel to compile"):
        compile_kernels([], "sm_80", "O3", toolchain)


def test_a_program_that_is_not_there_or_not_a_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="ptxas: .*missing is not a file"):
        find_toolchain(ptxas=tmp_path / "missing")
    silent = shutil.which("true")
    if silent is None:
        pytest.skip("no program called true")
    with pytest.raises(CompileError, match=r"gives no version; install it with: pip install 'wattprint\[ptx\]'"):
        find_toolchain(ptxas=Path(silent), nvdisasm=Path(silent))
