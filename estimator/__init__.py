"""Latency, power and energy of GPU work: the equations and the bundle format.

    from estimator import load_bundle, read_workload, estimate

    bundle = load_bundle("a100-pcie-40gb-eager")
    workload = read_workload("examples/gpt2-prefill.json")
    result = estimate(workload, bundle, sm_clock_mhz=900.0)[0]

The names of `__all__` are stable.  They are loaded on first use: importing one equation does not load the others.  This file imports
nothing, since every command runs it before it can handle an interruption.
"""

TYPE_CHECKING = False
"""Same meaning as `typing.TYPE_CHECKING`, without the import of that module."""

if TYPE_CHECKING:
    from estimator.bundle.content import Bundle
    from estimator.bundle.files import bundle_names, load_bundle
    from estimator.engine.kernel_table import KernelTable, predict_kernels
    from estimator.formats import read_workload, write_workload
    from estimator.questions.choosing import Best, Comparison, Gain, best, compare, pareto_front
    from estimator.questions.estimates import Estimate, KernelEstimate, estimate, roofline_latency_s
    from estimator.questions.explanation import Explanation, explain
    from estimator.questions.judging import Asked
    from estimator.questions.sweeping import Case, Sweep, sweep, sweep_chunks
    from estimator.serving.answers import ServedEstimate, Serving, serve_llm
    from estimator.transforms.rescaling import Sizes, with_sizes
    from estimator.transforms.rewriting import with_attention, with_precision
    from estimator.transforms.variation import Variant, variants
    from estimator.uncertainty.nearest import bundle_for
    from estimator.vocabulary.errors import (
        ArgumentError,
        BundleError,
        EstimatorError,
        OperatingPointError,
        SpecificationError,
        WorkloadError,
    )
    from estimator.vocabulary.gpu import GpuSpec
    from estimator.vocabulary.specifications import load_gpu, override_gpu
    from estimator.vocabulary.workload import Footprint, Operator, Workload, make_operator, merge_operators

__version__ = "0.1.0"

_HOMES = {
    "bundle.content": "Bundle",
    "bundle.files": "bundle_names load_bundle",
    "engine.kernel_table": "KernelTable predict_kernels",
    "formats": "read_workload write_workload",
    "questions.choosing": "Best Comparison Gain best compare pareto_front",
    "questions.estimates": "Estimate KernelEstimate estimate roofline_latency_s",
    "questions.explanation": "Explanation explain",
    "questions.judging": "Asked",
    "questions.sweeping": "Case Sweep sweep sweep_chunks",
    "serving.answers": "ServedEstimate Serving serve_llm",
    "transforms.rescaling": "Sizes with_sizes",
    "uncertainty.nearest": "bundle_for",
    "transforms.rewriting": "with_attention with_precision",
    "transforms.variation": "Variant variants",
    "vocabulary.errors": "ArgumentError BundleError EstimatorError OperatingPointError SpecificationError WorkloadError",
    "vocabulary.gpu": "GpuSpec",
    "vocabulary.specifications": "load_gpu override_gpu",
    "vocabulary.workload": "Footprint Operator Workload make_operator merge_operators",
}
"""Modules and the names that are loaded from them."""

__all__ = [
    "ArgumentError", "Asked", "Best", "Bundle", "BundleError", "Case", "Comparison", "Estimate", "EstimatorError",
    "Explanation",
    "Footprint", "Gain", "GpuSpec", "KernelEstimate", "KernelTable", "OperatingPointError", "Operator",
    "ServedEstimate", "Serving", "Sizes", "SpecificationError",
    "Sweep", "Variant", "Workload", "WorkloadError", "__version__", "best", "bundle_for", "bundle_names", "compare",
    "estimate", "explain", "load_bundle", "load_gpu", "make_operator", "merge_operators", "override_gpu", "pareto_front",
    "predict_kernels", "read_workload", "roofline_latency_s",
    "serve_llm", "sweep", "sweep_chunks", "variants", "with_attention", "with_precision",
    "with_sizes",
    "write_workload",
]  # fmt: skip


def __getattr__(name: str) -> object:
    from importlib import import_module

    home = next((module for module, names in _HOMES.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"estimator.{home}"), name)
    globals()[name] = value
    return value
