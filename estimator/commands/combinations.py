"""From a command's options to queries: every combination of the listed workloads, boards, sizes, precisions and forms.

Workloads of --model are traced with PyTorch, or are as an engine serves them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from estimator.commands.options import OF_MODELS, Options, as_wrong_usage
from estimator.commands.reporting import remark_lines, say, stdout_on_stderr
from estimator.vocabulary.errors import EstimatorError

if TYPE_CHECKING:
    from estimator.bundle.content import Bundle
    from estimator.questions.judging import Asked
    from estimator.questions.sweeping import Sweep
    from estimator.transforms.variation import Variant
    from estimator.vocabulary.gpu import GpuSpec

SERVING: Final = "serving"
OF_TRACES: Final = ("precision", "attention", "master", "image_size", "channels_last", "host_launch_us")
OF_SERVING: Final = ("kv", "tensor_parallel", "expert_parallel")
"""Options without a meaning in the other kind of runtime."""


def model_variants(options: Options) -> "list[Variant]":
    """The model in every size, precision and form, in each runtime.  Raises EstimatorError if PyTorch is needed and not installed."""
    found: list[Variant] = []
    for runtime in options["runtime"] or (_usual_runtime(options),):
        for name in OF_TRACES if runtime == SERVING else OF_SERVING:
            if options[name]:
                raise click.UsageError(f"--{name.replace('_', '-')} has no meaning with --runtime {runtime or 'eager'}: leave one out")
        found += _served(options) if runtime == SERVING else _traced(options, runtime)
    return found


def _usual_runtime(options: Options) -> str:
    """Decoding as an engine serves it, where the model is one that it serves and nothing else is asked for; else as the code says ("")."""
    from estimator.serving.costs import is_served

    traced, served = (any(options[name] for name in names) for names in (OF_TRACES, OF_SERVING))
    return SERVING if served or (options["phase"] == "decode" and not traced and is_served(options["model"])) else ""


def _served(options: Options) -> "list[Variant]":
    from estimator.serving.architecture import Layout
    from estimator.serving.costs import single_step

    model = options["model"]
    layout = Layout(**{name: options[name] or 1 for name in ("tensor_parallel", "expert_parallel")})
    if options["phase"] == "train" or (":" in model and not Path(model).exists()):
        raise click.UsageError(
            "own code and training are traced; --runtime serving, --kv and --tensor-parallel are of a served config.json"
        )
    return [
        single_step(model, options["phase"], batch=b, sequence=s, weights=options["weights"], kv=options["kv"], layout=layout)
        for b, s in product(options["batch"] or (1,), options["sequence"] or (0,))
    ]


def _traced(options: Options, runtime: str) -> "list[Variant]":
    from estimator.tracing.models import TraceRequest
    from estimator.tracing.torch_trace import trace_calls

    sizes = {name: options[name] for name in ("batch", "sequence")}
    asked = [name for name, values in sizes.items() if values]
    given = {name: options[name] for name in ("model", "phase", "weights", "master", "image_size", "channels_last") if options[name]}
    found = []
    for b, s, name, form in product(
        sizes["batch"] or (1,), sizes["sequence"] or (0,), options["precision"] or ("",), options["attention"] or ("",)
    ):
        request = TraceRequest(batch=b, sequence=s, precision=name, attention=form, runtime=runtime, **given)
        with stdout_on_stderr():
            found.append(trace_calls(request, asked))
    return found


MICROSECONDS: Final = 1e-6
OWN: Final = "own"
"""The word that stands for the bundle's own GPU in a list of GPUs."""
MOST_QUESTIONS: Final = 100_000
"""Most combinations; more are a mistake in a step."""


def questions(options: Options) -> "list[Asked]":
    """A query for every workload, bundle and GPU that can run it; workloads vary fastest.

    Raises EstimatorError for files that cannot be used, UsageError for options that exclude each other and lists that cannot be read.
    """
    if bool(options["workloads"]) == bool(options["model"]):
        raise click.UsageError("name workload files, or a --model to trace" + (", not both" if options["model"] else ""))
    from estimator.questions.judging import Asked
    from estimator.vocabulary.workload import LIBRARIES

    chosen, launch_us = _variants(options), options["host_launch_us"]
    products = [[one for one in variant.workload.operators if one.family == "gemm"] for variant in chosen]
    needs = [(frozenset(one.precision for one in own), any(one.library in LIBRARIES for one in own)) for own in products]
    found = dict(zip(needs, boards(options, *needs), strict=True))
    choices = [found[need] for need in needs]
    asked = [
        Asked(
            variant=variant,
            bundle=bundle,
            gpu=gpu,
            sm_clock_mhz=clocks,
            power_cap_w=options["power_cap"],
            host_launch_s=None if launch_us is None else launch_us * MICROSECONDS,
            efficiency=options["efficiency"],
            idle_power=idle_power,
        )
        for choice in zip(*choices, strict=True)
        for variant, (bundle, gpu, clocks, idle_power) in zip(chosen, choice, strict=True)
    ]
    return asked if len(choices[0]) == 1 else _able(asked, options)


def _able(asked: "list[Asked]", options: Options) -> "list[Asked]":
    """The queries without those that cannot run, which stderr names; all if none can run."""
    from estimator.questions.choosing import answered
    from estimator.questions.judging import at_clocks
    from estimator.questions.sweeping import joined_sweeps
    from estimator.uncertainty.validity import why_no_time

    points = joined_sweeps(answered([at_clocks(one, None) for one in asked]))
    found, left_out = [], []
    for one, case, latency_s in zip(asked, points.cases, points.latency_s.tolist(), strict=True):
        if math.isfinite(latency_s):
            found.append(one)
        else:
            left_out.append((case.workload, f"left out: {why_no_time(case.warnings)}"))
    say([], remark_lines(left_out) if found else [], options)
    return found or asked


Clocks = tuple[float, ...] | None
Need = tuple[frozenset[str], bool]
"""What an answer needs of a bundle: formats of its products, and whether an engine runs them."""
Choice: TypeAlias = "tuple[Bundle, GpuSpec | None, Clocks, tuple[float, float] | None]"


def boards(options: Options, *needs: Need) -> "list[list[Choice]]":
    """For each need every requested bundle with its GPU (None: its own), clocks and power at rest.  Raises EstimatorError."""
    return [[_choice(options, bundle, gpu) for bundle, gpu in found] for found in _boards(options, needs)]


def _choice(options: Options, bundle: "Bundle", gpu: "GpuSpec | None") -> "Choice":
    from estimator.engine.board import power_limit
    from estimator.vocabulary.specifications import parse_clocks

    board = gpu or bundle.gpu
    power_limit(options["power_cap"], board)  # refused before the first GPU is evaluated
    clocks: Clocks = None
    idle_power = None
    if options["freqs"] is not None:
        with as_wrong_usage("--freqs"):
            clocks = parse_clocks(options["freqs"], board.clocks_mhz().tolist())
    if options["idle_power"]:
        watt, at = options["idle_power"]
        if not at and len(clocks or ()) > 1:
            raise click.UsageError(f"--idle-power was read at one of the clocks of --freqs: say at which, {watt:g}@MHZ")
        idle_power = (watt, at or (clocks or (board.usual_clock_mhz,))[0])
    return bundle, gpu, clocks, idle_power


def _variants(options: Options) -> "list[Variant]":
    """Every workload in every requested size, precision and form, each under its own name."""
    varied = {name: options[name] for name in ("batch", "sequence", "precision", "attention")}
    count = math.prod(max(len(values), 1) for values in (*varied.values(), options["workloads"]))
    if count > MOST_QUESTIONS:
        raise click.UsageError(
            f"{count} combinations of batch, sequence, precision and attention; the most is {MOST_QUESTIONS}, use larger steps"
        )
    if options["model"]:
        if options["at"]:
            raise click.UsageError("--at is of workload files: a --model has the sizes of --batch and --sequence")
        return model_variants(options)
    odd = next((name for name in OF_MODELS if options[name] not in (None, False, (), ("eager",), "prefill")), "")
    if odd:
        raise click.UsageError(f"--{odd.replace('_', '-')} is of models, and a list of operators is none: give the model by --model")
    from estimator.formats import read_workload
    from estimator.transforms.variation import variants

    files: dict[str, str] = {}
    found: list[Variant] = []
    for path in options["workloads"]:
        workload = read_workload(path, completion=options["completion"])
        if files.setdefault(workload.name, path) != path:  # two files may have one name; their results must stay apart
            workload = replace(workload, name=f"{workload.name} ({path})")
        found += variants(workload, at=options["at"], **varied)
    return found


def _boards(options: Options, needs: Sequence[Need]) -> "list[list[tuple[Bundle, GpuSpec | None]]]":
    """Every requested bundle with every GPU, or without bundles each GPU with its best one for each need; None for the bundle's own GPU."""
    from estimator.bundle.files import bundle_heads, load_bundle, told_apart
    from estimator.uncertainty.nearest import asked_gpu, known_gpu, nearest_bundle
    from estimator.vocabulary.specifications import names_file, override_gpu

    given = options["bundle_names"]
    words = dict.fromkeys(word if word == OWN or names_file(word) else known_gpu(word).name for word in options["gpus"]) or (OWN,)
    if OWN in words and not given:
        raise click.UsageError("name a --gpu, such as h100 (`estimate gpus` lists them), or a --bundle")
    if options["idle_power"] and len(words) > 1:
        raise click.UsageError("--idle-power was read on one board: give one --gpu")
    heads = {} if given else bundle_heads(lambda line: say([], [line], options))
    pairs = [
        list(product(given, words)) if given else [(nearest_bundle(known_gpu(word), heads, formats, served=served), word) for word in words]
        for formats, served in needs
    ]
    names = list(dict.fromkeys(name for own in pairs for name, _ in own))
    bundles = dict(zip(names, told_apart([load_bundle(name) for name in names], names), strict=True))

    def board(bundle: "Bundle", word: str) -> "tuple[Bundle, GpuSpec | None]":
        gpu = None if word == OWN else asked_gpu(bundle, word)
        return bundle, override_gpu(gpu or bundle.gpu, options["figures"]) if options["figures"] else gpu

    return [[board(bundles[name], word) for name, word in own] for own in pairs]


def check_finite(points: "Sweep") -> None:
    """Refuse an answer without a time: the GPU has no rate for a precision, or a number overflowed.  Raises EstimatorError."""
    from estimator.uncertainty.validity import why_no_time

    for number, latency_s in zip(points.case.tolist(), points.latency_s.tolist(), strict=True):
        case = points.cases[number]
        if not math.isfinite(latency_s):
            raise EstimatorError(f"{case.workload} has no finite time on {case.gpu}: {why_no_time(case.warnings)}")
