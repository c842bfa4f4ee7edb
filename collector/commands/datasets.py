"""`collect export`, `collect reprocess` and `collect validate`: commands about a dataset."""

from pathlib import Path

import click

from collector.commands.options import CONTEXT, output_options, require_dataset_packages, sensor_option
from collector.commands.output import Speaker
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS
from estimator.options.output_files import check_output, output_option, refuse_inputs


@click.command("export", context_settings=CONTEXT)
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option("--to", "kind", type=click.Choice(["csv", "parquet"]), required=True, help="Format to write.")
@output_option("--out", help="File to write; without it the dataset's name with the format's suffix.")
@output_options
def export_command(dataset: Path, kind: str, out: Path | None, speak: Speaker) -> int:
    """Write DATASET (a Parquet file, a folder or the log of an unfinished campaign) as CSV or as one Parquet file."""
    require_dataset_packages()
    from collector.dataset.writer import export_dataset

    if out is None:
        out = dataset.with_suffix(f".{kind}")
        check_output(out)
    rows = export_dataset(dataset, kind, out)
    speak.say({"output": str(out), "rows": rows}, [f"{out}: {rows} rows"])
    return DONE


@click.command("reprocess", context_settings=CONTEXT)
@click.argument("dataset", type=click.Path(path_type=Path))
@sensor_option()
@output_option("--out", required=True, help="Dataset to write.")
@output_options
def reprocess_command(dataset: Path, sensor: str | None, out: Path, speak: Speaker) -> int:
    """Recompute DATASET from the traces that `collect --traces` kept beside it, with this version's correction
    and the sensor that --sensor names; without it the dataset's own.

    Writes a new dataset that names its source; DATASET stays unchanged.
    """
    require_dataset_packages()
    from collector.campaigns.reprocess import reprocess_dataset
    from collector.dataset.traces import traces_path

    refuse_inputs([out], [traces_path(dataset)])
    done = reprocess_dataset(dataset, sensor, out)
    document = {
        "dataset": str(out),
        "rows": done.rows,
        "rows_without_trace": done.untraced,
        "power_change_mean": done.mean_change,
        "power_change_largest": done.largest_change,
    }
    changed = f"power changed by {done.mean_change:.2%} in the mean, {done.largest_change:.2%} at most"
    speak.say(document, [f"{out}: {done.rows} rows, {changed}", f"next: fit {out}"])
    if not done.untraced:
        return DONE
    speak.warn(f"{done.untraced} rows have no trace and were left out")
    return DONE_WITH_WARNINGS


@click.command("validate", context_settings=CONTEXT)
@click.argument("dataset", type=click.Path(path_type=Path))
@output_options
def validate_command(dataset: Path, speak: Speaker) -> int:
    """Check DATASET (a Parquet file, a folder or the log of an unfinished campaign) against physics, its plan and itself.

    Exit status 3 if a rule is broken; a row that has its own doubt as a flag does not break the rule for it.
    """
    require_dataset_packages()
    from collector.dataset.rules import RULES, findings_document, findings_lines, validate_dataset

    findings = validate_dataset(dataset)
    speak.say(findings_document(findings), findings_lines(findings))
    if not findings.broken:
        return DONE
    speak.warn(f"{len(findings.broken)} of {len(RULES)} rules are broken")
    return DONE_WITH_WARNINGS
