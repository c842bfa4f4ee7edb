"""From a command's options to questions: every combination of what was listed, checked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.commands.numbers import known_precision
from estimator.errors import EstimatorError, OperatingPointError, SpecificationError

if TYPE_CHECKING:
    from estimator.bundles.files import Bundle
    from estimator.forms.rescaling import Sizes
    from estimator.forms.variation import Variant
    from estimator.gpu import GpuSpec
    from estimator.questions.choosing import Best
    from estimator.questions.judging import Asked
    from estimator.questions.points import Case, Sweep

MICROSECONDS: Final = 1e-6
OWN: Final = "own"
"""The word that stands for the bundle's own GPU in a list of GPUs."""
CHOICES: Final = "--precision or --gpu-spec"
"""What chooses a precision and a GPU."""
MOST_QUESTIONS: Final = 100_000
"""More combinations than this are a mistake in a step."""


def questions(options: Mapping[str, Any]) -> "list[Asked]":
    """A question for every workload, bundle and GPU, in that nesting from the inside out.

    Raises EstimatorError for files that cannot be used, UsageError for lists that cannot be read.
    """
    from estimator.board import power_limit
    from estimator.bundles.files import load_bundle
    from estimator.bundles.labels import told_apart
    from estimator.questions.judging import Asked

    names = options["bundle_names"]
    bundles = told_apart([load_bundle(name) for name in names], names)
    chosen = _variants(options)
    launch_us = options["host_launch_us"]
    asked = []
    for bundle in bundles:
        for gpu in _gpus(bundle, options):
            power_limit(options["power_cap"], gpu or bundle.gpu)  # refused before the first GPU is answered for
            for variant in chosen:
                asked.append(
                    Asked(
                        variant=variant,
                        bundle=bundle,
                        gpu=gpu,
                        sm_clock_mhz=_clocks(gpu or bundle.gpu, options),
                        power_cap_w=options["power_cap"],
                        host_launch_s=None if launch_us is None else launch_us * MICROSECONDS,
                        efficiency=shares(options["efficiency"]),
                    )
                )
    return asked


def _variants(options: Mapping[str, Any]) -> "list[Variant]":
    """Every workload in every size, precision and form asked for, each under a name of its own."""
    from estimator.formats import read_workload
    from estimator.forms.variation import variants

    batch, sequence = (_numbers(options[name], name) for name in ("batch", "sequence"))
    precision, attention = _words(options["precision"], "precision"), _words(options["attention"], "attention")
    count = math.prod(max(len(values), 1) for values in (batch, sequence, precision, attention, options["workloads"]))
    if count > MOST_QUESTIONS:
        raise click.UsageError(
            f"{count} combinations of batch, sequence, precision and attention; the most is {MOST_QUESTIONS}, use larger steps"
        )
    files: dict[str, str] = {}
    found = _traced(options, batch, sequence, precision, attention) if options["model"] else []
    for path in options["workloads"]:
        workload = read_workload(path, completion=options["completion"])
        if files.setdefault(workload.name, path) != path:
            workload = replace(workload, name=f"{workload.name} ({path})")
        found += variants(workload, at=_sizes(options["at"]), batch=batch, sequence=sequence, precision=precision, attention=attention)
    return found


def _traced(
    options: Mapping[str, Any], batch: Sequence[int], sequence: Sequence[int], precision: Sequence[str], attention: Sequence[str]
) -> "list[Variant]":
    """The model in every size, precision and form, traced one by one.  Raises EstimatorError where PyTorch is not installed."""
    from estimator.commands.foreign_prints import stdout_on_stderr
    from estimator.forms.variation import Variant
    from estimator.trace import trace_calls
    from estimator.tracing.request import TraceRequest, refuse_unused_sizes

    asked = [size for size, values in (("batch", batch), ("sequence", sequence)) if values]
    found = []
    combinations = product(batch or (1,), sequence or (TRACED_SEQUENCE,), precision or ("bf16",), attention or ("",))
    for b, s, name, form in combinations:
        request = TraceRequest(model=options["model"], batch=b, sequence=s, phase=options["phase"], precision=name, attention=form)
        with stdout_on_stderr():
            traced = trace_calls(request)
        refuse_unused_sizes(options["model"], asked, traced.sizes)
        b, s = (value if size in traced.sizes else 0 for size, value in (("batch", b), ("sequence", s)))
        tokens = b if options["phase"] == "decode" else b * s
        found.append(Variant(workload=traced.workload, batch=b, sequence=s, tokens=tokens, precision=name, attention=traced.attention))
    return found


TRACED_SEQUENCE: Final = 512
"""Tokens of a sequence where none are asked for, as `estimate trace` has it."""


def _numbers(text: str | None, name: str) -> tuple[int, ...]:
    from estimator.clock_list import parse_whole_numbers

    if text is None:
        return ()
    try:
        return parse_whole_numbers(text, name)
    except OperatingPointError as error:
        raise click.UsageError(f"--{name}: {error}") from error


def _words(text: str | None, name: str) -> tuple[str, ...]:
    from estimator.forms.rewriting import ATTENTION_FORMS

    words = tuple(dict.fromkeys(word.strip() for word in text.split(","))) if text is not None else ()
    if "" in words:
        raise click.UsageError(f"--{name}: {text!r} holds an empty name")
    if name == "precision":
        for word in words:
            known_precision(word)
    if name == "attention" and set(words) - set(ATTENTION_FORMS):
        raise click.UsageError(f"--attention: {text!r} must be a list of {', '.join(ATTENTION_FORMS)}")
    return words


def _sizes(text: str | None) -> "Sizes | None":
    """The sizes that --at states: "batch=8,sequence=512"."""
    from estimator.forms.rescaling import Sizes

    if text is None:
        return None
    values: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in ("batch", "sequence") or name in values or not (value.isascii() and value.isdecimal() and len(value) < MOST_DIGITS):
            raise click.UsageError(f"--at: {text!r} must read batch=8,sequence=512 or batch=8")
        values[name] = int(value)
    if 0 in values.values():
        raise click.UsageError(f"--at: {text!r}: sizes are whole numbers of at least 1")
    if "batch" not in values:
        raise click.UsageError(f"--at: {text!r} must state the batch")
    return Sizes(**values)


MOST_DIGITS: Final = 9


def _gpus(bundle: "Bundle", options: Mapping[str, Any]) -> "list[GpuSpec | None]":
    """The GPUs to ask for; None for the bundle's own."""
    from estimator.specifications import load_gpu

    names = _words(options["gpu_spec"], "gpu-spec") or (OWN,)
    gpus = [None if name == OWN else load_gpu(name) for name in names]
    return [changed_gpu(gpu or bundle.gpu, options["figures"]) for gpu in gpus] if options["figures"] else list(gpus)


def changed_gpu(gpu: "GpuSpec", figures: Mapping[str, str]) -> "GpuSpec":
    """The GPU with figures of --set.  Raises UsageError for one that it does not have or that cannot be."""
    from estimator.specifications import override_gpu

    try:
        return override_gpu(gpu, figures)
    except SpecificationError as error:
        raise click.UsageError(f"--set: {error}") from error


def _clocks(gpu: "GpuSpec", options: Mapping[str, Any]) -> tuple[float, ...] | None:
    from estimator.clock_list import parse_clocks

    if options["freqs"] is None:
        return None
    try:
        return parse_clocks(options["freqs"], gpu)
    except OperatingPointError as error:
        raise click.UsageError(f"--freqs: {error}") from error


def shares(settings: Mapping[str, str]) -> dict[str, float]:
    """Efficiencies by module.  Raises UsageError for a module that has none and for what can be no share."""
    from estimator.board import LEAST_EFFICIENCY, MOST_EFFICIENCY
    from estimator.coefficients import EFFICIENCY_COEFFICIENTS

    found = {}
    for module, text in settings.items():
        if module not in EFFICIENCY_COEFFICIENTS:
            raise click.UsageError(f"--efficiency: no efficiency of {module!r} can be set; known: {', '.join(EFFICIENCY_COEFFICIENTS)}")
        try:
            found[module] = float(text)
        except ValueError:
            found[module] = math.nan
        if not LEAST_EFFICIENCY <= found[module] <= MOST_EFFICIENCY:
            raise click.UsageError(f"--efficiency: {module}={text!r} must be a number from {LEAST_EFFICIENCY:g} to {MOST_EFFICIENCY:g}")
    return found


def check_finite(points: "Sweep") -> None:
    """Refuse points without a time: the GPU has no rate for a precision, or a number is beyond all reason."""
    from estimator.domain import why_no_time

    for latency, case in zip(points.latency_s.tolist(), points.case.tolist(), strict=True):
        if not math.isfinite(latency):
            where = points.cases[case]
            form = f" in {where.precision}" if where.precision else ""
            raise EstimatorError(f"{where.workload}{form} has no finite time on {where.gpu}: {why_no_time(where.warnings, CHOICES)}")


def runnable(points: "Sweep") -> "tuple[Sweep, list[tuple[Case, str]]]":
    """The points without those that their GPU cannot run, and why which cases are left out.

    Raises EstimatorError for other points without a time.
    """
    import numpy as np

    from estimator.display.sweeps import LEFT_OUT
    from estimator.domain import cannot_run_lines

    lost = np.unique(points.case[~np.isfinite(points.latency_s)]).tolist()
    stuck = {i: lines for i in lost if (lines := cannot_run_lines(points.cases[i].warnings))}
    if stuck:
        points = points.select(~np.isin(points.case, list(stuck)))
    check_finite(points)
    return points, [(points.cases[i], f"{LEFT_OUT}{line}") for i, lines in stuck.items() for line in lines]


def left_out_texts(points: "Sweep") -> list[str]:
    """Why each point is left out of an answer, "" for those that are not."""
    from estimator.domain import cannot_run_lines

    texts = ["; ".join(cannot_run_lines(case.warnings)) for case in points.cases]
    return ["" if math.isfinite(latency) else texts[i] for latency, i in zip(points.latency_s.tolist(), points.case.tolist(), strict=True)]


def within_clocks(asked: "Sequence[Asked]") -> "tuple[list[Asked], list[Sweep]]":
    """The questions at the clocks that their boards can lock, and the others as points without a time.

    Where one board alone is asked for, or none can be locked to any of the clocks, the questions are as they were: that is refused.
    """
    from estimator.domain import in_clock_range
    from estimator.questions.judging import at_clocks
    from estimator.questions.sweeping import unanswerable

    kept: list[Asked] = []
    outside: list[Sweep] = []
    if len({one.gpu or one.bundle.gpu for one in asked}) == 1:
        return list(asked), outside
    for one in asked:
        gpu, clocks = one.gpu or one.bundle.gpu, one.sm_clock_mhz
        possible = clocks and tuple(clock for clock in clocks if in_clock_range(clock, gpu))
        if possible != clocks:
            lost = [clock for clock in clocks or () if not in_clock_range(clock, gpu)]
            outside.append(unanswerable(one.variant, one.bundle, gpu, lost))
        if possible or clocks is None:
            kept.append(at_clocks(one, possible))
    return (kept, outside) if kept else (list(asked), [])


def runnable_questions(asked: "Sequence[Asked]", outside: "Sequence[Sweep]") -> "tuple[list[Asked], list[tuple[Case, str]]]":
    """The questions whose precisions their GPUs have a rate for, and why the others, and those `outside` clocks, are left out.

    Raises EstimatorError where none is left.
    """
    from estimator.questions.choosing import answered
    from estimator.questions.judging import at_clocks

    kept: list[Asked] = []
    left_out = [line for piece in outside for line in runnable(piece)[1]]
    refused: list[Sweep] = []
    start = 0
    for piece in answered([at_clocks(one, one.sm_clock_mhz and one.sm_clock_mhz[:1]) for one in asked]):
        points, lines = runnable(piece)
        kept += [asked[start + i] for i in points.present()]
        left_out += lines
        refused += [] if len(points) else [piece]
        start += len(piece.cases)
    if not kept:
        check_finite(refused[0])
    return kept, left_out


def best_point(asked: "Sequence[Asked]", options: Mapping[str, Any]) -> "Best":
    """The point of least --goal under --power-limit and --latency-limit [ms].

    Raises EstimatorError where no bundle knows the power that is asked for, where a GPU has no rate for a precision, and where no point
    keeps the limits.
    """
    from estimator.questions.choosing import MILLISECONDS, answered, best

    power_limit_w, latency_limit_ms = options["power_limit"], options["latency_limit"]
    asks = f"--goal {options['goal']}" if options["goal"] != "latency" else "--power-limit" if power_limit_w is not None else ""
    if asks and all(question.bundle.power is None for question in asked):
        names = ", ".join(dict.fromkeys(question.bundle.name for question in asked))
        instead = "ask for --goal latency" if options["goal"] != "latency" else "leave --power-limit out"
        raise EstimatorError(f"{asks}: bundle {names} has no power coefficients; {instead}, or fit rows that have an energy or power")
    try:
        return best(
            asked,
            options["goal"],
            power_limit_w=math.inf if power_limit_w is None else power_limit_w,
            latency_limit_s=math.inf if latency_limit_ms is None else latency_limit_ms * MILLISECONDS,
            confidence=options["confidence"],
        )
    except OperatingPointError:
        for points in answered(asked):
            check_finite(points)
        raise


def check_something_asked(options: Mapping[str, Any]) -> None:
    """Refuse a command without a workload, and with both files and a model.  Raises UsageError."""
    if bool(options["workloads"]) == bool(options["model"]):
        raise click.UsageError("name workload files, or a --model to trace" + (", not both" if options["model"] else ""))
    if options["model"] and options["at"] is not None:
        raise click.UsageError("--at says for which sizes files are written; a --model is traced at --batch and --sequence")
    if not options["model"] and options["phase"] != "prefill":
        raise click.UsageError("--phase belongs to --model")
