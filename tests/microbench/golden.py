"""Golden file of machine code: sums and products of the kernels by their operands.

Written anew, after a look at what changed, by:  python -m tests.microbench.golden
"""

import json
import re
from pathlib import Path

from microbench.families.catalogue import KERNELS, SWEEP
from microbench.kernel import OPTIMISATION_LEVELS
from microbench.toolchain.compile import compile_kernels, disassemble, find_toolchain
from microbench.toolchain.inspect import PRODUCTS, SUMS

OPERANDS = Path(__file__).resolve().parent.parent / "golden" / "microbench" / "operands.json"
OPERAND_ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
_SUM_OR_PRODUCT = re.compile(rf"\b((?:{'|'.join(sorted(PRODUCTS | SUMS))})(?:\.\w+)*) (U?R[^;]*);")


def kernels_at(architecture, level):
    """What is compiled for an architecture: at O3 the unroll sweep too."""
    candidates = (*KERNELS, *SWEEP) if level == "O3" else KERNELS
    return [kernel for kernel in candidates if not kernel.refusal(architecture)]


def operand_form(opcode, operands):
    """An instruction with its sources as r (register), u (uniform), c (constant), i (number), 0 and 1: "IMAD.U32 r r 0"."""
    words = [re.sub(r"[-|~]|\.reuse|\.64|\.H\d_H\d", "", word.strip()) for word in operands.split(",")[1:]]
    sources = [word for word in words if not re.match(r"!?U?P[T\d]", word)]
    names = (("0", r"U?RZ|0(x0)?"), ("1", r"1|0x1"), ("r", r"R\d+"), ("u", r"UR\d+"), ("c", r"c\[.*"), ("i", r".*"))
    return " ".join([opcode, *(next(name for name, form in names if re.fullmatch(form, source)) for source in sources)])


def operand_forms(kernels, architecture, level, toolchain):
    """The forms of all sums and products that kernels became."""
    cubin = compile_kernels(kernels, architecture, level, toolchain).cubin
    return dict.fromkeys(operand_form(*found.groups()) for found in _SUM_OR_PRODUCT.finditer(disassemble(cubin, toolchain)))


def operand_table(toolchain):
    """Form → the targets on which it is seen, as "sm_80-O0 sm_90-O3"."""
    table = {}
    for architecture in OPERAND_ARCHITECTURES:
        for level in OPTIMISATION_LEVELS:
            for form in operand_forms(kernels_at(architecture, level), architecture, level, toolchain):
                table.setdefault(form, []).append(f"{architecture}-{level}")
    return {form: " ".join(seen) for form, seen in sorted(table.items())}


def main():
    """Write the file with the assembler that is installed."""
    OPERANDS.write_text(json.dumps(operand_table(find_toolchain()), indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
