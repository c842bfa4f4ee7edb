"""Options of `estimate` and its commands, each declared once: their words, their types, and their meaning."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.options.command_line import is_given, named_file, output_option
from estimator.vocabulary.errors import OperatingPointError

if TYPE_CHECKING:
    from estimator.transforms.rescaling import Sizes

TEXT_FORMATS: Final = ("csv", "json", "txt")
CHART_FORMATS: Final = (*TEXT_FORMATS, "svg", "png")

ATTENTION_FORMS: Final = ("eager", "flash")
RUNTIMES: Final = ("eager", "compiled", "serving")
OF_MODELS: Final = ("phase", "runtime", "weights", "kv", "tensor_parallel", "expert_parallel", "master", "image_size", "channels_last")
"""Options without a meaning for a list of operators."""
SIZE: Final = "([1-9][0-9]{0,8})"
"""Pattern of a size, at most nine digits: a longer one is a mistake."""

Options = Mapping[str, Any]
"""The arguments that click passes to a command: the value of each option by its name, of the type declared here."""

Callback = Callable[[click.Context, click.Parameter, Any], Any]
"""What click calls with the value of an option."""

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


# Types of words -------------------------------------------------------------------------------------------------------


class Number(click.FloatRange):
    """A finite number within limits."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number.  Raises BadParameter for a text that is not a number, and for a number that is not finite or beyond the limits."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


POSITIVE = Number(0.0, min_open=True)

flag = partial(click.option, is_flag=True)
positive = partial(click.option, type=POSITIVE)
"""Options without a value, and of a positive number."""

EFFICIENCY = Number(1e-3, 1.5)
"""Share of a published rate (`estimator.engine.board.LEAST_EFFICIENCY`, `MOST_EFFICIENCY`)."""


def converted(convert: Callable[[Any], Any]) -> Callback:
    """The callback of an option whose whole value a function converts; click adds the option to a BadParameter."""
    return lambda _context, _parameter, value: convert(value)


def key_values(values: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE texts as a mapping, each key once."""
    settings: dict[str, str] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise click.BadParameter(f"{text!r} must read KEY=VALUE")
        if key in settings:
            raise click.BadParameter(f"{key!r} is given twice")
        settings[key] = value
    return settings


def _shares(values: tuple[str, ...]) -> dict[str, float]:
    return {key: EFFICIENCY(text) for key, text in key_values(values).items()}


def words(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Comma-separated words, each once."""
    found = tuple(dict.fromkeys(word.strip() for text in texts for word in text.split(",")))
    if "" in found:
        raise click.BadParameter(f"{','.join(texts)!r} holds an empty name")
    return found


def precision_word(text: str) -> str:
    """The name of a precision, as the type of an option.  Raises BadParameter for any other word."""
    from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, canonical_precision

    if canonical_precision(text) is None:
        raise click.BadParameter(f"unknown precision {text!r}; known: {', '.join(BYTES_PER_ELEMENT)}")
    return text


def each_word(convert: Callable[[str], str]) -> Callback:
    """The callback of an option with comma-separated words, each of which a function or a type of click checks."""
    return converted(lambda texts: tuple(map(convert, words(texts))))


def _reading(text: str) -> tuple[float, float | None]:
    """A power and, if stated, its clock: "62" or "62@1410"."""
    watt, at, clock = text.partition("@")
    return POSITIVE(watt), POSITIVE(clock) if at else None


@contextmanager
def as_wrong_usage(option: str) -> Iterator[None]:
    """Report errors in a list as wrong usage of its option."""
    try:
        yield
    except OperatingPointError as error:
        raise click.UsageError(f"{option}: {error}") from error


def whole_numbers(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Whole numbers from 1 on: "1,8,32" or LO:HI:STEP."""
    if text is None:
        return ()
    option = parameter.opts[0]
    from estimator.vocabulary.specifications import parse_whole_numbers

    with as_wrong_usage(option):
        return parse_whole_numbers(text, option.removeprefix("--"))


def _sizes(text: str) -> "Sizes":
    """The sizes that --at states: "batch=8,sequence=512"."""
    from estimator.transforms.rescaling import Sizes

    found = re.fullmatch(rf"batch={SIZE}(?:,sequence={SIZE})?", text.replace(" ", ""))
    if found is None:
        raise click.BadParameter(f"{text!r} must read batch=8,sequence=512 or batch=8, whole numbers of at least 1")
    return Sizes(batch=int(found[1]), sequence=int(found[2] or 0))


def kernel_count(value: str) -> int | None:
    """A number of kernels; None for "all"."""
    if value == "all":
        return None
    if not re.fullmatch(f"0|{SIZE}", value):
        raise click.BadParameter(f"{value!r} is neither a whole number nor 'all'")
    return int(value)


def answer_form(options: Options, known: Sequence[str]) -> str:
    """The form of the answer: from a flag, from the suffix of the output file, or "txt".  Raises UsageError."""
    out: Path | None = options.get("out")
    ending = out.suffix.lower().removeprefix(".") if out is not None else ""
    form, *others = [name for name in CHART_FORMATS if name == ending or options.get(f"as_{name}")] or [ending or "txt"]
    if others:
        raise click.UsageError(f"{form} and {others[0]}: an answer has one form, of --json, --csv and the ending of --out")
    if form not in known:
        raise click.UsageError(f"--out: .{form} is no form of this answer; known: {', '.join(known)}")
    if form in TEXT_FORMATS and is_given("chart"):
        raise click.UsageError("--chart: only a picture holds a chart; give -o FILE.svg")
    return form


# Options --------------------------------------------------------------------------------------------------------------

WHERE: Final = (
    click.option(
        "--bundle",
        "bundle_names",
        metavar="NAME|FILE",
        multiple=True,
        type=named_file,
        help="Calibration instead of the best one for the GPU; several may be given.",
    ),
    click.option(
        "--gpu",
        "--gpu-spec",
        "gpus",
        metavar="NAME|FILE,…",
        multiple=True,
        callback=converted(words),
        help="GPUs (estimate gpus); 'own': the bundle's.",
    ),
    click.option("--freqs", "--freq", "freqs", metavar="LIST|LO:HI:STEP|all", help="SM clocks [MHz]; else the usual one."),
)
"""Options of every estimate: bundles, GPUs, clocks."""

BOARD: Final = (
    click.option(
        "--set", "figures", multiple=True, callback=converted(key_values), metavar="KEY=VALUE", help="Change a figure: num_sms=132."
    ),
    click.option(
        "--efficiency", multiple=True, callback=converted(_shares), metavar="MODULE=SHARE", help="Reached share of a rate: dram=0.8."
    ),
    positive("--power-cap", metavar="W", help="Limit below the board's own, as nvidia-smi sets it: its clock falls."),
    click.option("--idle-power", type=_reading, metavar="W[@MHZ]", help="Power of your board at rest, awake, at the asked clock."),
)
"""Settings of a board."""

WEIGHTS: Final = click.option("--weights", metavar="NAME", help="Format of a model's weights instead of the config's: bf16, fp8, w8a8, …")
KV: Final = click.option("--kv", metavar="NAME", help="Format of a served model's cache instead of the config's: bf16, fp8.")
MASTER: Final = flag("--master", help="train: weights and moments in fp32 beside those in 16 bits (mixed precision).")
IMAGE_SIZE: Final = click.option(
    "--image-size", type=click.IntRange(1, 10**7), metavar="PIXELS", help="Height and width instead of the model's own."
)
CHANNELS_LAST: Final = flag(
    "--channels-last", help="Images and convolutions in the layout of tensor cores (memory_format=torch.channels_last)."
)

QUESTION: Final = (
    click.argument("workloads", metavar="[WORKLOAD]...", nargs=-1, type=named_file),
    *WHERE,
    click.option("--batch", metavar="LIST|LO:HI:STEP", callback=whole_numbers, help="Sequences or images at once."),
    click.option("--sequence", metavar="LIST|LO:HI:STEP", callback=whole_numbers, help="Tokens of each."),
    click.option(
        "--at",
        metavar="batch=B,sequence=S",
        type=_sizes,
        help="The sizes that the workload files are written for, unless their names tell.",
    ),
    click.option(
        "--precision",
        metavar="NAME,…",
        multiple=True,
        callback=each_word(precision_word),
        help="Compute in bf16, fp16, fp32, fp8, …; `sweep` takes several.",
    ),
    click.option(
        "--attention",
        metavar="eager,flash",
        multiple=True,
        callback=each_word(click.Choice(ATTENTION_FORMS)),
        help="Attention as separate kernels or fused; `sweep` takes both.",
    ),
    click.option("--model", metavar="CONFIG|MODULE:CALLABLE", type=named_file, help="This model instead of files (wattprint[torch])."),
    click.option("--phase", type=click.Choice(["prefill", "decode", "train"]), default="prefill", help="Of a model."),
    click.option(
        "--runtime",
        metavar="eager,compiled,serving",
        multiple=True,
        callback=each_word(click.Choice(RUNTIMES)),
        help="Of a model: eager, compiled, serving (as an engine runs it).",
    ),
    WEIGHTS,
    KV,
    click.option("--tensor-parallel", type=click.IntRange(1, 4096), metavar="N", help="GPUs that share every layer of a served model."),
    click.option("--expert-parallel", type=click.IntRange(1, 4096), metavar="N", help="Groups of GPUs that share its experts."),
    MASTER,
    IMAGE_SIZE,
    CHANNELS_LAST,
    *BOARD,
    # A host that needed longer for one operator would run no model (`estimator.engine.board.LONGEST_LAUNCH_S`).
    click.option("--host-launch-us", type=Number(0.0, 1e6), metavar="US", help="Your host's time to launch an operator."),
    click.option("--completion/--no-completion", default=True, help="Add the operators that a traced list leaves out (default), or none."),
)
"""Options of every query: workloads, bundles, GPUs, clocks, sizes, precisions."""

KERNELS: Final = click.option(
    "--kernels", type=kernel_count, default="10", show_default=True, metavar="N|all", help="Kernels in the table."
)

JSON: Final = flag("--json", "as_json", help="One JSON document, SI units.")
CSV: Final = flag("--csv", "as_csv", help="CSV lines, SI units.")
STRICT: Final = flag("--strict", help="Exit status 3 if any warning holds.")
QUIET: Final = flag("-q", "--quiet", help="No warnings or notes on stderr.")


def answer_options(forms: Sequence[str], charts: Sequence[str] = ()) -> tuple[Decorator, ...]:
    """Options for the file and the form of the answer, and for the chart of a picture (default: the first)."""
    out = output_option(metavar="FILE", help=f"Write the answer there, in the form that its ending names: {', '.join(forms)}.")
    chart = [click.option("--chart", type=click.Choice(charts), default=name, help="What an .svg or .png shows.") for name in charts[:1]]
    return (*chart, out, CSV, JSON, STRICT, QUIET)


def with_options(*options: Decorator) -> Decorator:
    """A command with these options, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
