"""The command `estimate bundles`: what bundles there are, their cards, and the local store."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from estimator.command_line import DONE, DONE_WITH_WARNINGS, named_file, named_files


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="The store is the folder that WATTPRINT_BUNDLES names, else ~/.local/share/wattprint/bundles.",
)
@click.argument("bundles", metavar="[BUNDLE]...", nargs=-1, callback=named_files)
@click.option("--card", is_flag=True, help="What each BUNDLE was fitted on, how well, and for what it holds.")
@click.option("--add", metavar="FILE", callback=named_file, help="Keep this bundle in the local store, to be used by its name.")
@click.option("--replace", is_flag=True, help="With --add: another bundle of that name gives way.")
@click.option("--remove", metavar="NAME", callback=named_file, help="Remove this bundle from the local store.")
@click.option("-v", "--verbose", is_flag=True, help="Digests and files too.")
@click.option("-q", "--quiet", is_flag=True, help="No warnings on stderr.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, SI units.")
def bundles_command(bundles: Sequence[str], **options: Any) -> int:
    """List the bundles that come with the package, those of the local store, and those given by FILE."""
    if options["replace"] and options["add"] is None:
        raise click.UsageError("--replace belongs to --add")
    if options["add"] is not None and options["remove"] is not None:
        raise click.UsageError("--add and --remove exclude each other")
    if options["card"] and (options["add"] is not None or options["remove"] is not None):
        raise click.UsageError("--card only shows BUNDLEs; leave --add and --remove out")
    if options["card"]:
        return _cards(bundles, options)
    from estimator.bundles.keeping import drop_bundle, keep_bundle
    from estimator.bundles.store import store_fault
    from estimator.display.bundles import bundle_rows, bundle_table, rows_json
    from estimator.display.estimates import printable

    if options["add"] is not None:
        keep_bundle(Path(options["add"]), replace=options["replace"])
    if options["remove"] is not None:
        drop_bundle(options["remove"])
    rows = bundle_rows(bundles)
    click.echo(rows_json(rows) if options["as_json"] else bundle_table(rows, options["verbose"]), nl=False)
    fault, barred = store_fault() or ("", False)
    broken = [row["error"] for row in rows if row["error"] is not None] + [fault] * barred
    if not options["quiet"]:
        for error in broken:
            click.echo(f"warning: {printable(error)}", err=True)
        if fault and not barred:
            click.echo(f"note: {printable(fault)}", err=True)
    return DONE_WITH_WARNINGS if broken else DONE


def _cards(names: Sequence[str], options: dict[str, Any]) -> int:
    from estimator.bundles.files import load_bundle
    from estimator.display.cards import card_document, card_text

    if not names:
        raise click.UsageError("--card: name at least one BUNDLE")
    found = [load_bundle(name) for name in names]
    if options["as_json"]:
        click.echo(json.dumps([card_document(bundle) for bundle in found], indent=1, allow_nan=False))
    else:
        click.echo("\n".join(card_text(bundle) for bundle in found), nl=False)
    return DONE
