"""`collect doctor`."""

import click

from collector.commands.options import CONTEXT, output_options
from collector.commands.output import say
from estimator.command_line import DONE, DONE_WITH_WARNINGS


@click.command("doctor", context_settings=CONTEXT)
@click.option("--gpu", default=None, metavar="WORD", help="Look at this board alone: NVML index, UUID, PCI address or sim:PROFILE.")
@output_options
def doctor_command(gpu: str | None, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Look for what stands in the way of measuring here, and say what to do about it.

    Packages, driver, boards, clocks, other users of a board, its power readings, serial ports.  Nothing is changed.
    Exit status 3 where something is not as it should be.
    """
    from collector.doctor import OK, examine, finding_documents

    findings = list(examine(gpu))
    if as_json:
        say(finding_documents(findings))
    else:
        width = max(len(finding.check) for finding in findings)
        lines = []
        for finding in findings:
            remedy = f"; {finding.remedy}" if finding.remedy else ""
            lines.append(f"{finding.state:<8} {finding.check:<{width}}  {finding.seen}{remedy}")
        say(lines)
    return DONE if all(finding.state == OK for finding in findings) else DONE_WITH_WARNINGS
