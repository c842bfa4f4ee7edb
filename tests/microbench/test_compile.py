"""Compilation: one cubin, inspected."""

import hashlib
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from microbench.errors import CompileError
from microbench.families import kernel_named
from microbench.toolchain.compile import compile_kernels, disassemble, find_toolchain
from microbench.toolchain.inspect import histogram, loop_body, read_listings

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
