"""Golden files of machine code: what each kernel's loop became, one file for each version of the assembler, and one of sums and products
by their operands.

Written anew, after a look at what changed, by:  python -m tests.microbench.golden [PTXAS]
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from microbench.families import KERNELS, SWEEP
from microbench.kernel import ARCHITECTURES, OPTIMISATION_LEVELS, Kernel
from microbench.toolchain.compile import CompiledModule, Toolchain, compile_kernels, disassemble, find_toolchain
from microbench.toolchain.inspect import PRODUCTS, SUMS, InspectedEntry

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "microbench"


def golden_file(toolchain: Toolchain) -> Path:
    """The golden file of an assembler, and of the disassembler's major version: it names the opcodes."""
    return FOLDER / f"ptxas-{toolchain.ptxas_version}-nvdisasm-{toolchain.nvdisasm_version.split('.')[0]}.json"


def kernels_at(architecture: str, level: str) -> list[Kernel]:
    """What is compiled for an architecture: at O3 the unroll sweep too."""
    candidates = (*KERNELS, *SWEEP) if level == "O3" else KERNELS
    return [kernel for kernel in candidates if not kernel.refusal(architecture)]


def compiled(architecture: str, level: str, toolchain: Toolchain) -> CompiledModule:
    """All kernels of an architecture in one module."""
    return compile_kernels(kernels_at(architecture, level), architecture, level, toolchain)


def line(entry: InspectedEntry) -> str:
    """An entry in one line: registers, and the opcodes of its loop with their numbers."""
    return f"r{entry.registers} " + " ".join(f"{opcode}*{count}" if count > 1 else opcode for opcode, count in entry.body.items())


def lines_by_architecture(modules: Mapping[str, CompiledModule]) -> dict[str, dict[str, str]]:
    """Kernel → line → architectures that share it."""
    table: dict[str, dict[str, list[str]]] = {}
    for architecture, module in modules.items():
        for name, entry in module.entries.items():
            table.setdefault(name, {}).setdefault(line(entry), []).append(architecture)
    return {name: {text: " ".join(shared) for text, shared in lines.items()} for name, lines in sorted(table.items())}


def expected_line(golden: Mapping[str, Mapping[str, Mapping[str, str]]], level: str, kernel: str, architecture: str) -> str | None:
    """The line of a kernel on an architecture; None where the file has none."""
    lines = golden.get(level, {}).get(kernel, {})
    return next((text for text, shared in lines.items() if architecture in shared.split()), None)


OPERANDS = FOLDER / "operands.json"
OPERAND_ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
_SUM_OR_PRODUCT = re.compile(rf"\b((?:{'|'.join(sorted(PRODUCTS | SUMS))})(?:\.\w+)*) (U?R[^;]*);")


def operand_form(opcode: str, operands: str) -> str:
    """An instruction with its sources as r (register), u (uniform), c (constant), i (number), 0 and 1: "IMAD.U32 r r 0"."""
    words = [re.sub(r"[-|~]|\.reuse|\.64|\.H\d_H\d", "", word.strip()) for word in operands.split(",")[1:]]
    sources = [word for word in words if not re.match(r"!?U?P[T\d]", word)]
    names = (("0", r"U?RZ|0(x0)?"), ("1", r"1|0x1"), ("r", r"R\d+"), ("u", r"UR\d+"), ("c", r"c\[.*"), ("i", r".*"))
    return " ".join([opcode, *(next(name for name, form in names if re.fullmatch(form, source)) for source in sources)])


def operand_forms(kernels: Sequence[Kernel], architecture: str, level: str, toolchain: Toolchain) -> dict[str, None]:
    """The forms of all sums and products that kernels became."""
    cubin = compile_kernels(kernels, architecture, level, toolchain).cubin
    return dict.fromkeys(operand_form(*found.groups()) for found in _SUM_OR_PRODUCT.finditer(disassemble(cubin, toolchain)))


def operand_table(toolchain: Toolchain) -> dict[str, str]:
    """Form → the targets on which it is seen, as "sm_80-O0 sm_90-O3"."""
    table: dict[str, list[str]] = {}
    for architecture in OPERAND_ARCHITECTURES:
        for level in OPTIMISATION_LEVELS:
            for form in operand_forms(kernels_at(architecture, level), architecture, level, toolchain):
                table.setdefault(form, []).append(f"{architecture}-{level}")
    return {form: " ".join(seen) for form, seen in sorted(table.items())}


def main() -> None:
    """Write the golden file of the assembler that is installed, or of the one that is named."""
    toolchain = find_toolchain(ptxas=Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    content = {
        level: lines_by_architecture({architecture: compiled(architecture, level, toolchain) for architecture in ARCHITECTURES})
        for level in OPTIMISATION_LEVELS
    }
    path = golden_file(toolchain)
    path.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
    OPERANDS.write_text(json.dumps(operand_table(toolchain), indent=0) + "\n", encoding="utf-8")
    print(path, OPERANDS)


if __name__ == "__main__":
    main()
