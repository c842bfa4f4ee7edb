"""`collect validate`."""

from pathlib import Path

import click

from collector.commands.options import CONTEXT, output_options, require_dataset_packages
from collector.commands.output import Speaker
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS


@click.command("validate", context_settings=CONTEXT)
@click.argument("dataset", type=click.Path(path_type=Path), required=False)
@click.option("--rules", "list_rules", is_flag=True, help="Print the rules and their limits; read nothing.")
@output_options
def validate_command(dataset: Path | None, list_rules: bool, speak: Speaker) -> int:
    """Check DATASET (a Parquet file, a folder or the log of an unfinished campaign) against physics, its plan and itself.

    Exit status 3 where a rule is broken; a row that carries its own doubt as a flag breaks none for it.
    """
    require_dataset_packages()
    from collector.dataset.rules import RULES
    from collector.dataset.validation import findings_document, findings_lines, rule_lines, validate_dataset

    if list_rules is (dataset is not None):
        raise click.UsageError("name the dataset to check, or give --rules, not both")
    if dataset is None:
        speak.say([{"rule": rule.id, "what": rule.what, "limit": rule.limit} for rule in RULES], rule_lines())
        return DONE
    findings = validate_dataset(dataset)
    speak.say(findings_document(findings), findings_lines(findings, verbose=speak.verbose))
    if not findings.broken:
        return DONE
    speak.warn(f"{len(findings.broken)} of {len(RULES)} rules are broken")
    return DONE_WITH_WARNINGS
