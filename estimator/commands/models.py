"""From --model to workloads: traced with PyTorch, or as an engine serves them."""

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from estimator.commands.options import Options
from estimator.commands.reporting import stdout_on_stderr

if TYPE_CHECKING:
    from estimator.transforms.variation import Variant

SERVING: Final = "serving"
OF_TRACES: Final = ("precision", "attention", "master", "image_size")
OF_SERVING: Final = ("kv", "tensor_parallel")
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
    from estimator.serving.single_step import is_served

    traced, served = (any(options[name] for name in names) for names in (OF_TRACES, OF_SERVING))
    return SERVING if served or (options["phase"] == "decode" and not traced and is_served(options["model"])) else ""


def _served(options: Options) -> "list[Variant]":
    from estimator.serving.single_step import single_step

    model, parallel = options["model"], options["tensor_parallel"] or 1
    if options["phase"] == "train" or (":" in model and not Path(model).exists()):
        raise click.UsageError(
            "own code and training are traced; --runtime serving, --kv and --tensor-parallel are of a served config.json"
        )
    return [
        single_step(model, options["phase"], batch=b, sequence=s, weights=options["weights"], kv=options["kv"], tensor_parallel=parallel)
        for b, s in product(options["batch"] or (1,), options["sequence"] or (512,))
    ]


def _traced(options: Options, runtime: str) -> "list[Variant]":
    from estimator.tracing.request import TraceRequest
    from estimator.tracing.torch_trace import trace_calls
    from estimator.transforms.variation import Variant

    sizes = {name: options[name] for name in ("batch", "sequence")}
    asked = [name for name, values in sizes.items() if values]
    given = {name: options[name] for name in ("model", "phase", "weights", "master", "image_size") if options[name]}
    found = []
    for b, s, name, form in product(
        sizes["batch"] or (1,), sizes["sequence"] or (512,), options["precision"] or ("",), options["attention"] or ("",)
    ):
        request = TraceRequest(batch=b, sequence=s, precision=name, attention=form, runtime=runtime, **given)
        with stdout_on_stderr():
            traced = trace_calls(request, asked)
        b, s = (value if size in traced.sizes else 0 for size, value in (("batch", b), ("sequence", s)))
        tokens = b if options["phase"] == "decode" else b * s
        forms = {"precision": traced.precision, "attention": traced.attention}
        found.append(Variant(workload=traced.workload, batch=b, sequence=s, tokens=tokens, **forms))
    return found
