"""`collect kernels`."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from collector.commands.options import CONTEXT, output_options
from collector.commands.output import Speaker, columns
from estimator.options.command_line import DONE

if TYPE_CHECKING:
    from microbench.loads.listing import ListedKernel


@click.command("kernels", context_settings=CONTEXT)
@click.option("--families", metavar="LIST", help="Only these families, wildcards allowed: ffma,mma_*,copy.")
@click.option("--arch", metavar="SM", help="Only what this architecture runs: sm_80, sm_90a.")
@output_options
def kernels_command(families: str | None, arch: str | None, speak: Speaker) -> int:
    """What `kernels = […]` of a campaign's [[instructions]] can name: generated microbenchmarks and copies.

    One line each: name, family, memory level or link, launch modes, data patterns, the architectures that run it, and the PTX instruction
    that it prices.
    """
    from microbench.errors import UnsupportedError
    from microbench.kernel import ARCHITECTURES
    from microbench.loads.listing import counted_kinds, listed_kernels

    if arch is not None and arch not in ARCHITECTURES:
        meant = f"; write sm_{arch}" if f"sm_{arch}" in ARCHITECTURES else ""
        raise click.UsageError(f"--arch {arch!r}: kernels are there for {', '.join(ARCHITECTURES)}{meant}")
    names = [] if families is None else [name.strip() for name in families.split(",") if name.strip()]
    if families is not None and not names:
        raise click.UsageError(f"--families: {families!r} names no family; leave the option out for all")
    try:
        kernels, refusals = listed_kernels(names, arch or "")
    except UnsupportedError as error:
        raise click.UsageError(f"--families: {error}") from error
    speak.say([asdict(kernel) for kernel in kernels], _lines(kernels) if kernels else [])
    if kernels:
        speak.note(counted_kinds(kernels))
    if refusals:
        for refusal in refusals if speak.verbose else ():
            speak.note(refusal)
        speak.note(f"{len(refusals)} more do not run on {arch}{'' if speak.verbose else '; -v says why'}")
    return DONE


def _lines(kernels: "list[ListedKernel]") -> list[str]:
    """The kernels as a table; its first line names the columns."""
    rows = [("name", "family", "level", "modes", "patterns", "runs on", "instruction")]
    rows += [
        (one.name, one.family, one.level, ",".join(one.modes), ",".join(one.patterns), one.runs_on, one.instruction) for one in kernels
    ]
    return columns(rows)
