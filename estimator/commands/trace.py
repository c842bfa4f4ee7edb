"""The command `estimate trace`: the operators of a PyTorch model as a workload file."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.commands.options import CHANNELS_LAST, IMAGE_SIZE, MASTER, QUIET, WEIGHTS, converted, flag, key_values, precision_word
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, named_file, output_option
from estimator.tracing.models import ATTENTION_FORMS, LOGITS, PHASES, RUNTIMES, SIZES, TraceRequest, load_model_config, model_names
from estimator.transforms.rescaling import LARGEST_SIZE

if TYPE_CHECKING:
    from estimator.display.text import Document
    from estimator.vocabulary.workload import Workload

SIZE: Final = click.IntRange(1, LARGEST_SIZE)


def configuration(values: tuple[str, ...]) -> dict[str, object]:
    """KEY=VALUE texts as a mapping; a value that is valid JSON is parsed."""
    settings: dict[str, object] = {}
    for key, text in key_values(values).items():
        try:
            settings[key] = json.loads(text)
        except (ValueError, RecursionError):
            settings[key] = text
    return settings


@click.command(
    epilog="Needs PyTorch and Transformers: pip install 'wattprint[torch]'. Nothing is downloaded and no GPU is asked for.",
)
@click.argument("model", metavar="MODEL", required=False, type=named_file)
@flag("--list", "list_models", help="Names of the models that are shipped.")
@click.option("--batch", type=SIZE, help="Sequences or images; else 1.")
@click.option("--sequence", type=SIZE, help="Tokens; decode: all attended to; else 512, or as many as fit.")
@click.option("--phase", type=click.Choice(PHASES), default="prefill", show_default=True, help="train: forward, backward, AdamW.")
@click.option(
    "--precision", type=precision_word, metavar="NAME", help="fp32, tf32, bf16, …; else as the configuration stores weights, or bf16."
)
@WEIGHTS
@click.option(
    "--attention",
    type=click.Choice(ATTENTION_FORMS),
    help="Separate kernels, or one; else eager, and own code as PyTorch runs its calls.",
)
@click.option("--runtime", type=click.Choice(RUNTIMES), help="Kernels as launched, or as torch.compile merges them; else as own code says.")
@MASTER
@click.option("--head/--no-head", default=True, help="With the head of the task (default), or the bare model.")
@click.option("--logits", type=click.Choice(LOGITS), default="last", show_default=True, help="Of the last token, or of all.")
@IMAGE_SIZE
@CHANNELS_LAST
@click.option("--set", "settings", multiple=True, callback=converted(configuration), metavar="KEY=VALUE", help="Change the configuration.")
@output_option(metavar="FILE", help="Write the workload there and a summary to stdout.")
@flag("--json", "as_json", help="The summary as one JSON document; the workload itself is always JSON.")
@QUIET
def trace_command(*, list_models: bool, out: Any, as_json: bool, quiet: bool, model: str | None, **request: Any) -> int:
    """Operators of MODEL, a PyTorch model built without weights on the meta device, as a workload file.

    MODEL is a name (--list), a config.json of Transformers or its folder, or your own MODULE:CALLABLE or
    FILE.py:CALLABLE, which returns a torch.nn.Module, or one and its inputs.
    """
    if list_models == (model is not None):
        raise click.UsageError("name a MODEL, or ask for --list")
    from estimator.commands.reporting import say, show, stdout_on_stderr
    from estimator.display.text import document_text, json_text, rows_text

    if model is None:
        rows = [{"name": name, "title": load_model_config(name).title} for name in model_names()]
        show(rows_text(rows, "json" if as_json else "txt"))
        return DONE
    from estimator.formats import write_workload
    from estimator.formats.own import own_text
    from estimator.tracing.torch_trace import trace_calls

    given = {name: value for name, value in request.items() if value is not None}
    with stdout_on_stderr():
        workload = trace_calls(TraceRequest(model=model, **given), given.keys() & set(SIZES)).workload
    if out is None:
        show(own_text(workload))
    else:
        write_workload(workload, out)
        summary = _summary(workload)
        show(json_text(summary) if as_json else document_text(summary))
    warnings = [f"{item.name} ×{item.count} is of no known kind; it is left out of estimates" for item in workload.unknown]
    warnings += workload.warnings
    say(warnings, workload.notes, {"quiet": quiet})
    return DONE_WITH_WARNINGS if workload.unknown else DONE


def _summary(workload: "Workload") -> "Document":
    """Kernels, flop and bytes of a workload, and the memory that it needs."""
    from estimator.vocabulary.work import workload_work

    work, held = workload_work(workload), workload.footprint
    return {
        "workload": workload.name,
        "kernels": sum(workload.counts),
        "kinds": len(workload.operators),
        "flop": work.flop,
        "moved_byte": work.read_byte + work.write_byte,
        "memory": None if held is None else asdict(held) | {"total_byte": held.total_byte},
    }
