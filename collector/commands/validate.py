"""`collect validate`."""

from pathlib import Path

import click

from collector.commands.options import CONTEXT, output_options, require_dataset_packages
from collector.commands.output import note, say
from estimator.command_line import DONE, DONE_WITH_WARNINGS


@click.command("validate", context_settings=CONTEXT)
@click.argument("dataset", type=click.Path(path_type=Path), required=False)
@click.option("--rules", "list_rules", is_flag=True, help="Print the rules and their limits; read nothing.")
@output_options
def validate_command(dataset: Path | None, list_rules: bool, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Check DATASET (a Parquet file, a folder or the log of an unfinished campaign) against physics, its plan and itself.

    Exit status 3 where a rule is broken; a row that carries its own doubt as a flag breaks none for it.
    """
    require_dataset_packages()
    from collector.dataset.rules import RULES
    from collector.dataset.validation import findings_document, findings_lines, rule_lines, validate_dataset

    if list_rules and dataset is not None:
        raise click.UsageError("name the dataset to check, or give --rules, not both")
    if list_rules:
        say([{"rule": rule.id, "what": rule.what, "limit": rule.limit} for rule in RULES] if as_json else rule_lines())
        return DONE
    if dataset is None:
        raise click.UsageError("name the dataset to check, or give --rules")
    findings = validate_dataset(dataset)
    say(findings_document(findings) if as_json else findings_lines(findings, verbose=verbose))
    if findings.broken and not quiet:
        note(f"warning: {len(findings.broken)} of {len(findings.checked)} rules are broken")
    return DONE_WITH_WARNINGS if findings.broken else DONE
