"""The command `estimate trace`: the operators of a PyTorch model as a workload file."""

import json
from typing import Any, Final

import click
from click.core import ParameterSource

from estimator.command_line import DONE, DONE_WITH_WARNINGS, QUIET_OR_VERBOSE, excludes, named_file, switch
from estimator.commands.numbers import precision_word
from estimator.output_files import output_option
from estimator.tracing.request import ATTENTION_FORMS, LOGITS, OPTIMIZERS, PHASES

LARGEST: Final = 10**7


def settings_option(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """KEY=VALUE texts as a mapping; a value that reads as JSON is taken as such."""
    settings: dict[str, Any] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise click.BadParameter(f"{text!r} must read KEY=VALUE", context, parameter)
        if key in settings:
            raise click.BadParameter(f"{key!r} is given twice", context, parameter)
        try:
            settings[key] = json.loads(value)
        except (ValueError, RecursionError):
            settings[key] = value
    return settings


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Needs PyTorch and Transformers: pip install 'wattprint[torch]'. Nothing is downloaded and no GPU is asked for.",
)
@click.argument("model", metavar="MODEL", required=False, callback=named_file)
@click.option("--list", "list_models", is_flag=True, help="Names of the models that are shipped.")
@click.option("--batch", type=click.IntRange(1, LARGEST), default=1, show_default=True, help="Sequences or images.")
@click.option("--sequence", type=click.IntRange(1, LARGEST), default=512, show_default=True, help="Tokens; decode: all attended to.")
@click.option("--phase", type=click.Choice(PHASES), default="prefill", show_default=True, help="train: forward, backward, optimizer.")
@click.option(
    "--precision", default="bf16", callback=precision_word, show_default=True, metavar="NAME", help="fp32, tf32, bf16, fp16, fp8, …"
)
@click.option(
    "--attention", type=click.Choice(ATTENTION_FORMS), help="Separate kernels, or one; else eager, and own code as PyTorch runs its calls."
)
@switch("head", "--head", "--no-head", True, ("With the head of the task (default).", "The bare model."))
@click.option("--logits", type=click.Choice(LOGITS), default="last", show_default=True, help="Of the last token, or of all.")
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="adamw", show_default=True, help="Of a training step.")
@click.option("--image-size", type=click.IntRange(1, LARGEST), metavar="PIXELS", help="Height and width instead of the model's own.")
@click.option("--set", "settings", multiple=True, callback=settings_option, metavar="KEY=VALUE", help="Change the configuration.")
@click.option("--resizable", is_flag=True, help="Trace at other sizes, too: the file can be rescaled.")
@click.option("--compare", metavar="FILE", callback=named_file, help="Show what the trace adds to this operator list.")
@output_option("-o", "--out", metavar="FILE", help="Write the workload there and a summary to stdout.")
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON document; the workload itself is always JSON.")
@click.option("-q", "--quiet", is_flag=True, callback=excludes("verbose", QUIET_OR_VERBOSE), help="No warnings or notes on stderr.")
@click.option("-v", "--verbose", is_flag=True, callback=excludes("quiet", QUIET_OR_VERBOSE), help="The summary on stderr.")
def trace_command(**options: Any) -> int:
    """Operators of MODEL, a PyTorch model built without weights on the meta device, as a workload file.

    MODEL is a name (--list), a config.json of Transformers or its folder, or your own MODULE:CALLABLE or
    FILE.py:CALLABLE, which returns a torch.nn.Module, or one and its inputs.
    """
    from estimator.tracing.display import model_rows

    if options["list_models"] and options["model"] is not None:
        raise click.UsageError("name a MODEL or ask for --list, not both")
    if options["list_models"]:
        rows = model_rows()
        table = "".join(f"{row['name']:<18}{row['title']}\n" for row in rows)
        click.echo(json.dumps(rows, indent=2) + "\n" if options["as_json"] else table, nl=False)
        return DONE
    if options["model"] is None:
        raise click.UsageError("name a MODEL, or ask for --list")
    if options["phase"] == "decode" and options["sequence"] < 2:
        raise click.UsageError("--sequence of a decoding step is at least 2: a token and one before it")
    return _trace(options)


def _trace(options: dict[str, Any]) -> int:
    from estimator.commands.foreign_prints import stdout_on_stderr
    from estimator.formats import read_workload, write_workload
    from estimator.formats.own import own_text
    from estimator.trace import trace_calls
    from estimator.tracing.comparison import compare_workloads
    from estimator.tracing.display import comparison_text, comparison_values, summary_text, trace_summary
    from estimator.tracing.request import SIZES, TraceRequest, refuse_unused_sizes
    from estimator.tracing.resizing import with_growth

    listed = read_workload(options["compare"], completion=False) if options["compare"] else None
    names = ("model", "batch", "sequence", "phase", "precision", "attention", "head", "logits", "optimizer", "settings")
    given = {name: options[name] for name in names} | {"attention": options["attention"] or ""}
    request = TraceRequest(**given, image_size=options["image_size"] or 0)
    with stdout_on_stderr():
        traced = trace_calls(request)
    source = click.get_current_context().get_parameter_source
    refuse_unused_sizes(options["model"], [size for size in SIZES if source(size) is not ParameterSource.DEFAULT], traced.sizes)
    with stdout_on_stderr():
        workload, fixed = with_growth(request, traced, trace_calls) if options["resizable"] else (traced.workload, "")
    summary, text = trace_summary(workload), ""
    if listed is not None:
        comparison = compare_workloads(workload, listed)
        summary |= {"comparison": comparison_values(comparison)}
        text = comparison_text(comparison)
    text = summary_text(summary) + text
    if options["out"] is not None:
        write_workload(workload, options["out"])
        click.echo(json.dumps(summary, indent=2) if options["as_json"] else text, nl=options["as_json"])
    elif listed is not None:
        click.echo(json.dumps(summary, indent=2) if options["as_json"] else text, nl=options["as_json"])
    else:
        click.echo(own_text(workload), nl=False)
        if options["verbose"]:
            click.echo(text, nl=False, err=True)
    if not options["quiet"]:
        for item in workload.unknown:
            click.echo(
                f"warning: {item.name} ×{item.count} is of no known kind; it is named in the file and left out of estimates", err=True
            )
        for kind, lines in (("warning", (*workload.warnings, *filter(None, [fixed]))), ("note", workload.notes)):
            for line in lines:
                click.echo(f"{kind}: {line}", err=True)
    return DONE_WITH_WARNINGS if workload.unknown or workload.warnings or fixed else DONE
