"""`collect kernels`."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import click

from collector.commands.options import CONTEXT, output_options
from collector.commands.output import Speaker, columns
from collector.errors import CollectorError
from estimator.options.command_line import DONE

KINDS: Final = {"catalogue": "of the catalogue", "variant": "variants in chains and unrolling (for the regression)", "copy": "copies"}
"""What a listed name is: a kernel with an energy of its own to tell, the same with other chains or unrolling, or a copy."""

FIELDS: Final = ("name", "family", "instruction", "module", "level", "chains", "unroll", "modes", "patterns", "levels")
HEADS: Final = ("name", "family", "level", "modes", "patterns", "runs on", "instruction")


@click.command("kernels", context_settings=CONTEXT)
@click.option("--families", metavar="LIST", help="Only these families, wildcards allowed: ffma,mma_*,copy.")
@click.option("--arch", metavar="SM", help="Only what this architecture runs: sm_80, sm_90a.")
@output_options
def kernels_command(families: str | None, arch: str | None, speak: Speaker) -> int:
    """What `kernels = […]` of a campaign's [[instructions]] can name: generated microbenchmarks and copies.

    One line each: name, family, memory level or link, launch modes, data patterns, the architectures that run it, and the PTX instruction
    that it prices.
    """
    from microbench.kernel import ARCHITECTURES

    if arch is not None and arch not in ARCHITECTURES:
        raise click.UsageError(f"--arch {arch!r}: kernels are there for {', '.join(ARCHITECTURES)}")
    names = [] if families is None else [name.strip() for name in families.split(",") if name.strip()]
    if families is not None and not names:
        raise click.UsageError(f"--families: {families!r} names no family; leave the option out for all")
    try:
        kernels, refusals = listed_kernels(names, arch or "")
    except CollectorError as error:
        raise click.UsageError(f"--families: {error}") from error
    lines = columns([HEADS, *map(_cells, kernels)]) if kernels else []
    speak.say(kernels, lines)
    if kernels:
        numbers = {text: sum(one["kind"] == kind for one in kernels) for kind, text in KINDS.items()}
        parts = ", ".join(f"{number} {text}" for text, number in numbers.items() if number)
        speak.note(f"{len(kernels)} names in {len({one['family'] for one in kernels})} families: {parts}")
    for refusal in refusals if speak.verbose else ():
        speak.note(refusal)
    if refusals:
        speak.note(f"{len(refusals)} more do not run on {arch}{'' if speak.verbose else '; -v says why'}")
    return DONE


def listed_kernels(families: Sequence[str] = (), architecture: str = "") -> tuple[list[dict[str, Any]], list[str]]:
    """The kernels and copies of some families (wildcards allowed; none: all) that an architecture runs ("": any), as plain data.

    Beside them the reasons why it does not run others.  Raises CollectorError for a family that the catalogue does not have.
    """
    from microbench.families import KERNELS, SWEEP
    from microbench.kernel import ARCHITECTURES, HostLoad, Kernel
    from microbench.loads.generated import COPIES

    groups: tuple[Sequence[Kernel | HostLoad], ...] = (KERNELS, SWEEP, COPIES)
    every = [(kind, one) for kind, group in zip(KINDS, groups, strict=True) for one in group]
    for pattern in families:
        if not any(fnmatchcase(one.family, pattern) for _, one in every):
            raise CollectorError(f"no family is named {pattern!r}; without a name all are listed")
    asked = [(kind, one) for kind, one in every if not families or any(fnmatchcase(one.family, name) for name in families)]
    refusals = [refusal for _, one in asked if architecture and (refusal := one.refusal(architecture))]
    listed = [
        {
            "kind": kind,
            "architectures": [name for name in ARCHITECTURES if not one.refusal(name)],
            **{name: getattr(one, name) for name in FIELDS},
        }
        for kind, one in asked
        if not (architecture and one.refusal(architecture))
    ]
    return listed, refusals


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    from microbench.kernel import ARCHITECTURES

    lacking = [name for name in ARCHITECTURES if name not in one["architectures"]]
    few = f"all but {', '.join(lacking)}" if lacking else "all"
    runs_on = few if len(lacking) < len(one["architectures"]) else ", ".join(one["architectures"])
    return (one["name"], one["family"], one["level"], ",".join(one["modes"]), ",".join(one["patterns"]), runs_on, one["instruction"])
