"""`collect reprocess`."""

from pathlib import Path

import click

from collector.commands.options import CONTEXT, output_options, require_dataset_packages, sensor_option
from collector.commands.output import note, say
from estimator.command_line import DONE, DONE_WITH_WARNINGS
from estimator.output_files import output_option, refuse_inputs


@click.command("reprocess", context_settings=CONTEXT)
@click.argument("dataset", type=click.Path(path_type=Path))
@sensor_option()
@output_option("--out", required=True, help="Dataset to write.")
@output_options
def reprocess_command(dataset: Path, sensor: str | None, out: Path, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Work out DATASET again from the traces that `collect --traces` kept beside it, with this version's correction
    and the sensor that --sensor names; without it the dataset's own.

    Writes a new dataset that says what it was made from; DATASET stays as it is.
    """
    require_dataset_packages()
    from collector.campaigns.reprocess import reprocess_dataset
    from collector.dataset.traces import traces_path

    refuse_inputs([out], [traces_path(dataset)])
    done = reprocess_dataset(dataset, sensor, out)
    if as_json:
        say(
            {
                "dataset": str(out),
                "rows": done.rows,
                "rows_without_trace": done.untraced,
                "power_change_mean": done.mean_change,
                "power_change_largest": done.largest_change,
            }
        )
    else:
        say(
            [
                f"{out}: {done.rows} rows, power changed by {done.mean_change:.2%} in the mean, {done.largest_change:.2%} at most",
                f"next: fit {out}",
            ]
        )
    if done.untraced and not quiet:
        note(f"warning: {done.untraced} rows have no trace and were left out")
    return DONE_WITH_WARNINGS if done.untraced else DONE
