"""PTX text: modules and entries, assembled from readable pieces.

Registers are untyped (.b16, .b32, .b64, .pred): the instruction determines their type.  Every generated entry has the
same frame: compute the thread's indices, exit idle lanes, load, loop with a runtime trip count without unrolling, store.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from estimator.vocabulary.frozen import FrozenMapping
from microbench.kernel import ARCHITECTURES, SCALARS, Kernel

LOOP_LABEL: Final = "LOOP"
DONE_LABEL: Final = "DONE"


LOOP_CONTROL: Final = ("sub.u32 left, left, 1;", "setp.ne.u32 more, left, 0;")
"""Instructions that count the turns down; a branch follows."""

INDENT: Final = "    "


def module_text(kernels: Sequence[Kernel], architecture: str) -> str:
    """One PTX module with the entries of several kernels.  The architecture must be able to run them (`Kernel.refusal`)."""
    header = f".version {ARCHITECTURES[architecture].ptx}\n.target {architecture}\n.address_size 64\n"
    declarations = "\n".join(dict.fromkeys(kernel.declarations for kernel in kernels if kernel.declarations))
    return "\n".join([header, declarations, *(kernel.text for kernel in kernels)])


class Texts(NamedTuple):
    """Lines of PTX before a loop, in its body and after it."""

    before: Iterable[str]
    body: Iterable[str]
    after: Iterable[str]


def entry_text(
    *,
    name: str,
    arguments: Iterable[str],
    registers: Mapping[str, Iterable[str]],
    texts: Texts,
    shared: str,
    max_threads: int,
    lanes_may_idle: bool,
) -> str:
    """One entry: the text before the loop, a loop over the body for `iterations` turns, the text after it; blank lines are dropped.

    `registers` maps a type ("b32", "pred"…) to names.  The frame provides the u32 registers `thread` (number in the grid), `local`
    (number in the block), `lane`, `left` (remaining turns), and for each argument a register with its name; addresses are converted from
    generic to global.  With `lanes_may_idle`, lanes from active_lanes on exit at once.
    """
    bits = {argument: 32 if argument in SCALARS else 64 for argument in arguments}
    parameters = ",\n".join(f"{INDENT}.param .u{width} {argument}_parameter" for argument, width in bits.items())
    own = {"b32": ("thread", "local", "lane", "left", "block_number", "block_size"), "pred": ("more", "idle")}
    passed = ({f"b{width}": (argument,)} for argument, width in bits.items())
    lines = [f".reg .{kind} {', '.join(names)};" for kind, names in _merged(registers, own, *passed).items()]
    lines += shared.splitlines()
    lines += ["mov.u32 local, %tid.x;", "mov.u32 block_number, %ctaid.x;", "mov.u32 block_size, %ntid.x;", "mov.u32 lane, %laneid;"]
    lines += ["mad.lo.u32 thread, block_number, block_size, local;"]
    for argument, width in bits.items():
        lines.append(f"ld.param.u{width} {argument}, [{argument}_parameter];")
        if width == 64:
            lines.append(f"cvta.to.global.u64 {argument}, {argument};")
    if lanes_may_idle:
        lines += ["setp.ge.u32 idle, lane, active_lanes;", f"@idle bra {DONE_LABEL};"]
    lines += [*texts.before, "mov.b32 left, iterations;"]
    loop = [*texts.body, *LOOP_CONTROL, f"@more bra {LOOP_LABEL};"]
    text = "\n".join(
        [
            f".visible .entry {name}(\n{parameters}\n)",
            f".maxntid {max_threads}, 1, 1",
            "{",
            *(INDENT + line for line in lines),
            f"{LOOP_LABEL}:",
            f'{INDENT}.pragma "nounroll";',
            *(INDENT + line for line in loop),
            *(INDENT + line for line in texts.after),
            f"{DONE_LABEL}:",
            f"{INDENT}ret;",
            "}",
        ]
    )
    return "\n".join(line for line in text.splitlines() if line.strip()) + "\n"


def loop_operations(text: str, share: float) -> FrozenMapping[float]:
    """PTX instructions in one turn of an entry's loop by name, without loop control.

    `share` is the share of threads that reach the loop.
    """
    loop = text.partition(f"{LOOP_LABEL}:")[2].partition(f"@more bra {LOOP_LABEL};")[0]
    lines = [line.strip() for line in loop.splitlines()]
    own = [line.partition(" ")[0].rstrip(";") for line in lines if line.endswith(";") and line[0] not in "@."]
    counts = Counter(own[: -len(LOOP_CONTROL)])
    return FrozenMapping({name: count * share for name, count in sorted(counts.items())})


def _merged(*groups: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    merged: dict[str, list[str]] = {}
    for group in groups:
        for kind, names in group.items():
            merged.setdefault(kind, []).extend(names)
    return {kind: list(dict.fromkeys(names)) for kind, names in merged.items() if names}
