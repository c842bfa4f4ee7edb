"""`collect reprocess`."""

from pathlib import Path

import click

from collector.commands.options import CONTEXT, output_options, require_dataset_packages, sensor_option
from collector.commands.output import Speaker
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS
from estimator.options.output_files import output_option, refuse_inputs


@click.command("reprocess", context_settings=CONTEXT)
@click.argument("dataset", type=click.Path(path_type=Path))
@sensor_option()
@output_option("--out", required=True, help="Dataset to write.")
@output_options
def reprocess_command(dataset: Path, sensor: str | None, out: Path, speak: Speaker) -> int:
    """Work out DATASET again from the traces that `collect --traces` kept beside it, with this version's correction
    and the sensor that --sensor names; without it the dataset's own.

    Writes a new dataset that says what it was made from; DATASET stays as it is.
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
