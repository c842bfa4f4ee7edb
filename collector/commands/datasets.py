"""`collect export` and `collect report`: a dataset as another file, and a page about it."""

from pathlib import Path

import click

from collector.commands.options import CONTEXT, FILE, output_options, require_dataset_packages
from collector.commands.output import Speaker
from estimator.options.command_line import DONE
from estimator.options.output_files import check_output, output_option
from estimator.vocabulary.whole_file import write_whole


@click.command("export", context_settings=CONTEXT)
@click.argument("dataset", type=FILE)
@click.option("--to", "kind", type=click.Choice(["csv", "parquet"]), required=True, help="Format to write.")
@output_option(help="File to write; without it the dataset's name with the format's suffix.")
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


@click.command("report", context_settings=CONTEXT)
@click.argument("dataset", type=FILE)
@output_option(required=True, metavar="PAGE.html", help="Page to write.")
@output_options
def report_command(dataset: Path, out: Path, speak: Speaker) -> int:
    """Write a page about DATASET (a Parquet file, a folder or the log of an unfinished campaign): what holds, what does not and why."""
    require_dataset_packages()
    from collector.campaigns.page import dataset_page

    page, rows = dataset_page(dataset)
    write_whole(out, page.encode("utf-8", errors="replace"))
    speak.say({"output": str(out), "rows": rows}, [f"{out}: a page about {rows} rows"])
    return DONE
