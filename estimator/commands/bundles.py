"""The commands `estimate bundles`, lists of bundles and their cards, and `estimate gpus`."""

from collections.abc import Sequence
from typing import Any

import click

from estimator.commands.options import JSON, QUIET, flag, with_options
from estimator.commands.reporting import say, show
from estimator.options.command_line import DONE, named_file


@click.command(
    epilog="A bundle is installed by its name in the folder that WATTPRINT_BUNDLES names, else ~/.local/share/wattprint/bundles.",
)
@with_options(
    click.argument("bundles", metavar="[BUNDLE]...", nargs=-1, type=named_file),
    flag("--card", help="What each BUNDLE was fitted on, how well, and for what it holds."),
    QUIET,
    JSON,
)
def bundles_command(bundles: Sequence[str], **options: Any) -> int:
    """List the bundles that come with the package, those of the local store, and those given by FILE."""
    from estimator.bundle.files import load_bundle
    from estimator.display.bundles import bundle_table, card_document, card_text, listed_bundles
    from estimator.display.text import json_text

    as_json = options["as_json"]
    if options["card"]:
        if not bundles:
            raise click.UsageError("--card: name at least one BUNDLE")
        texts = [json_text([card_document(load_bundle(name)) for name in bundles])] if as_json else map(card_text, bundles)
        show("\n".join(texts))
        return DONE
    rows = listed_bundles(bundles)
    show(json_text(rows) if as_json else bundle_table(rows))
    return say([str(row["error"]) for row in rows if row["error"] is not None], (), options)


@click.command(
    epilog="at rest: awake, at the published clock; asleep: without a context. within: 90 % of forecasts, beside the bundle's own errors.",
)
@with_options(click.argument("gpus", metavar="[GPU]...", nargs=-1, type=named_file), QUIET, JSON)
def gpus_command(gpus: Sequence[str], **options: Any) -> None:
    """List the GPUs that have a specification, or those given by NAME or FILE: names, power, and the bundle that answers workloads."""
    from estimator.display.bundles import gpu_table, listed_gpus
    from estimator.display.text import json_text

    found = list(listed_gpus(gpus, lambda line: say([], [line], options)))
    show(json_text(found) if options["as_json"] else gpu_table(found))
