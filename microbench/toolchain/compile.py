"""PTX → cubin → inspected entries.  The runner loads the same cubin that is inspected here.

The assembler and the disassembler come from wheels (`pip install 'wattprint[ptx]'`) or from a CUDA toolkit on the PATH.
One call handles all kernels of an architecture, because the disassembler's start takes longer than its work.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Final

from estimator.vocabulary.documents import printable
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.values import frozen
from microbench.errors import CompileError, UnsupportedError
from microbench.kernel import ARCHITECTURES, Kernel
from microbench.toolchain.inspect import InspectedEntry, Instruction, histogram, loop_body, read_listings, register_reads
from microbench.toolchain.ptx import module_text

INSTALL: Final = "install it with: pip install 'wattprint[ptx]'"

WHEEL_FOLDERS: Final = ("cuda_nvcc/bin", "cu13/bin", "cuda_nvdisasm/bin")
"""Folders of the wheels' programs, below the `nvidia` package."""

TOOLKIT: Final = "/usr/local/cuda"
"""Folder of a CUDA toolkit that is not on the PATH (CUDA installation guide, Linux)."""

TOOL_TIMEOUT_S: Final = 300.0
"""Longest time of one call [s]; the whole catalogue of one architecture takes a few seconds."""

_ENTRY: Final = re.compile(r"Compiling entry function '([^']+)'")
_FRAME: Final = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED: Final = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


@frozen
class Toolchain:
    """The two programs, and the version of the assembler."""

    ptxas: Path
    nvdisasm: Path
    ptxas_version: str


@frozen
class CompiledModule:
    """A cubin with its SHA-256, and its entries by kernel name."""

    architecture: str
    level: str
    compiler: str
    digest: str
    cubin: bytes = field(repr=False)
    entries: Mapping[str, InspectedEntry]


def find_toolchain() -> Toolchain:
    """The assembler and the disassembler: the wheels', else those on the PATH, in CUDA_HOME or in TOOLKIT.

    Raises CompileError if one is missing or does not answer.
    """
    ptxas, nvdisasm = _find("ptxas"), _find("nvdisasm")
    return Toolchain(ptxas=ptxas, nvdisasm=nvdisasm, ptxas_version=assembler_version(ptxas))


def compile_kernels(kernels: Sequence[Kernel], architecture: str, level: str, toolchain: Toolchain) -> CompiledModule:
    """Compile and inspect several kernels as one cubin.  The architecture must be able to run them (`Kernel.refusal`).

    Raises UnsupportedError for programs that are too new for the architecture; CompileError if the assembler fails or a kernel is missing
    in the result.
    """
    text, needs = module_text(kernels, architecture), ARCHITECTURES[architecture].needs
    try:
        cubin, verbose = assembled(text, architecture, level, toolchain)
        entries = _inspect(cubin, verbose, toolchain)
    except CompileError as error:
        if not needs:
            raise
        raise UnsupportedError(f"{architecture} needs {needs} ({error})") from error
    if missing := [kernel.name for kernel in kernels if kernel.name not in entries]:
        raise CompileError(
            f"{missing[0]} is not in what nvdisasm and ptxas {toolchain.ptxas_version} say of the cubin for {architecture}; "
            f"take both programs from the wheels: {INSTALL}"
        )
    return CompiledModule(
        architecture=architecture,
        level=level,
        compiler=f"ptxas {toolchain.ptxas_version}",
        digest=hashlib.sha256(cubin).hexdigest(),
        cubin=cubin,
        entries=entries,
    )


def disassemble(cubin: bytes, toolchain: Toolchain) -> str:
    """nvdisasm's text of a cubin.  Raises CompileError if it fails."""
    with _scratch() as folder:
        file = folder / "module.cubin"
        file.write_bytes(cubin)
        return _run([str(toolchain.nvdisasm), "-c", str(file)], "nvdisasm refuses the cubin").stdout


def _find(program: str) -> Path:
    package = importlib.util.find_spec("nvidia")
    for root in package.submodule_search_locations or () if package else ():
        for folder in WHEEL_FOLDERS:
            candidate = Path(root) / folder / program
            if candidate.is_file():
                return candidate
    toolkits = (f"{home}/bin" for home in (os.environ.get("CUDA_HOME"), TOOLKIT) if home)
    found = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *toolkits]))
    if found is None:
        raise CompileError(f"{program} is not installed; {INSTALL}")
    return Path(found)


def assembler_version(program: Path) -> str:
    """The version of an assembler.  Raises CompileError if it gives none."""
    answer = _run([str(program), "--version"], f"{program} does not say its version").stdout
    found = re.search(r"\bV(\d+\.\d+\.\d+)", answer)
    if not found:
        raise CompileError(f"{program} gives no version; {INSTALL}")
    return found[1]


def assembled(text: str, architecture: str, level: str, toolchain: Toolchain) -> tuple[bytes, str]:
    """The cubin, and what the assembler prints about its entries.  Raises CompileError if it fails."""
    with _scratch() as folder:
        source, target = folder / "module.ptx", folder / "module.cubin"
        source.write_text(text, encoding="utf-8")
        command = [str(toolchain.ptxas), "-v", f"-{level}", f"-arch={architecture}", str(source), "-o", str(target)]
        done = _run(command, f"ptxas {toolchain.ptxas_version} refuses the kernels for {architecture}")
        if not target.is_file():
            raise CompileError(f"ptxas {toolchain.ptxas_version} ({toolchain.ptxas}) writes no cubin for {architecture}; {INSTALL}")
        return target.read_bytes(), done.stderr


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder for the programs' files."""
    try:
        with tempfile.TemporaryDirectory(prefix="wattprint-") as folder:
            yield Path(folder)
    except OSError as error:
        raise CompileError(f"temporary files cannot be written: {error.strerror or error}; make room or set TMPDIR") from error


def _inspect(cubin: bytes, verbose: str, toolchain: Toolchain) -> FrozenMapping[InspectedEntry]:
    resources = _read_resources(verbose)
    entries = {}
    for name, listing in read_listings(disassemble(cubin, toolchain)).items():
        if name not in resources:
            continue  # a callee in a separate section
        body: tuple[Instruction, ...] = loop_body(listing)
        entries[name] = InspectedEntry(body=histogram(body), reads=register_reads(body), **resources[name])
    return FrozenMapping(dict(sorted(entries.items())))


def _read_resources(verbose: str) -> dict[str, dict[str, int]]:
    """Registers, spills, stack and shared memory by entry, from `ptxas -v`, which prints them after the entry's line."""
    resources: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in verbose.splitlines():
        if entry := _ENTRY.search(line):
            current = dict.fromkeys(("registers", "spilled_bytes", "shared_bytes"), 0)
            resources[entry[1]] = current
        elif frame := _FRAME.search(line):
            current["spilled_bytes"] = int(frame[1]) + int(frame[2])
        elif used := _USED.search(line):
            current |= {"registers": int(used[1]), "shared_bytes": int(used[2] or 0)}
    return resources


def _run(command: list[str], failure: str) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=TOOL_TIMEOUT_S, check=False)
    except OSError as error:
        raise CompileError(f"{failure}: {error.strerror or error}; {INSTALL}") from error
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{failure}: no answer within {TOOL_TIMEOUT_S:.0f} s") from error
    if done.returncode < 0:
        raise CompileError(f"{failure}: ended by signal {-done.returncode}; is there memory left?")
    if done.returncode != 0:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = next((line for line in said if "error" in line.lower() or "fatal" in line.lower()), said[0] if said else "no reason given")
        plain = printable(re.sub(r"^ptxas .*?, (?=line)", "", reason))
        raise CompileError(f"{failure}: {plain[:300]}")
    return done
