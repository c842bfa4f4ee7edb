"""Latency, power and energy of GPU work: the equations and the bundle format.

    from estimator import load_bundle, read_workload, estimate

    bundle = load_bundle("a100-pcie-40gb-eager")
    workload = read_workload("examples/gpt2-prefill.json")
    result = estimate(workload, bundle, sm_clock_mhz=900.0)[0]

The names of `__all__` are stable.  They are fetched on first use: importing one equation does not load the others.  Nothing is
imported here, since every command passes here before it can answer to an interruption.
"""

TYPE_CHECKING = False
"""As `typing.TYPE_CHECKING`, which would cost loading that module."""

if TYPE_CHECKING:
    from estimator.baselines.answers import BaselineEstimate, baseline_estimates
    from estimator.bundles.content import Bundle
    from estimator.bundles.files import bundle_names, load_bundle
    from estimator.errors import ArgumentError, BundleError, EstimatorError, OperatingPointError, SpecificationError, WorkloadError
    from estimator.formats import read_workload, write_workload
    from estimator.forms.rescaling import Sizes, with_sizes
    from estimator.forms.rewriting import with_attention, with_precision
    from estimator.forms.variation import Variant, variants
    from estimator.gpu import GpuSpec
    from estimator.kernel_prediction import KernelTable, predict_kernels
    from estimator.questions.choosing import Best, Gain, best, pareto_front
    from estimator.questions.comparison import Comparison, compare
    from estimator.questions.costs import Tariff, cost_columns
    from estimator.questions.estimates import Estimate, KernelEstimate, estimate
    from estimator.questions.explanation import Explanation, explain
    from estimator.questions.judging import Asked
    from estimator.questions.points import Case, Sweep
    from estimator.questions.sweeping import sweep, sweep_chunks
    from estimator.specifications import load_gpu, override_gpu
    from estimator.workload import Footprint, Operator, Workload, make_operator, merge_operators

__version__ = "0.1.0"

_HOME = {
    "ArgumentError": "estimator.errors",
    "Asked": "estimator.questions.judging",
    "BaselineEstimate": "estimator.baselines.answers",
    "Best": "estimator.questions.choosing",
    "Bundle": "estimator.bundles.content",
    "BundleError": "estimator.errors",
    "Case": "estimator.questions.points",
    "Comparison": "estimator.questions.comparison",
    "Estimate": "estimator.questions.estimates",
    "EstimatorError": "estimator.errors",
    "Explanation": "estimator.questions.explanation",
    "Footprint": "estimator.workload",
    "Gain": "estimator.questions.choosing",
    "GpuSpec": "estimator.gpu",
    "KernelEstimate": "estimator.questions.estimates",
    "KernelTable": "estimator.kernel_prediction",
    "OperatingPointError": "estimator.errors",
    "Operator": "estimator.workload",
    "Sizes": "estimator.forms.rescaling",
    "SpecificationError": "estimator.errors",
    "Sweep": "estimator.questions.points",
    "Tariff": "estimator.questions.costs",
    "Variant": "estimator.forms.variation",
    "Workload": "estimator.workload",
    "WorkloadError": "estimator.errors",
    "baseline_estimates": "estimator.baselines.answers",
    "best": "estimator.questions.choosing",
    "bundle_names": "estimator.bundles.files",
    "compare": "estimator.questions.comparison",
    "cost_columns": "estimator.questions.costs",
    "estimate": "estimator.questions.estimates",
    "explain": "estimator.questions.explanation",
    "load_bundle": "estimator.bundles.files",
    "load_gpu": "estimator.specifications",
    "make_operator": "estimator.workload",
    "merge_operators": "estimator.workload",
    "override_gpu": "estimator.specifications",
    "pareto_front": "estimator.questions.choosing",
    "predict_kernels": "estimator.kernel_prediction",
    "read_workload": "estimator.formats",
    "sweep": "estimator.questions.sweeping",
    "sweep_chunks": "estimator.questions.sweeping",
    "variants": "estimator.forms.variation",
    "with_attention": "estimator.forms.rewriting",
    "with_precision": "estimator.forms.rewriting",
    "with_sizes": "estimator.forms.rescaling",
    "write_workload": "estimator.formats",
}

__all__ = [
    "ArgumentError", "Asked", "BaselineEstimate", "Best", "Bundle", "BundleError", "Case", "Comparison", "Estimate", "EstimatorError",
    "Explanation",
    "Footprint", "Gain", "GpuSpec", "KernelEstimate", "KernelTable", "OperatingPointError", "Operator", "Sizes", "SpecificationError",
    "Sweep", "Tariff", "Variant", "Workload", "WorkloadError", "__version__", "baseline_estimates", "best", "bundle_names", "compare",
    "cost_columns", "estimate", "explain", "load_bundle", "load_gpu", "make_operator", "merge_operators", "override_gpu", "pareto_front",
    "predict_kernels", "read_workload", "sweep", "sweep_chunks", "variants", "with_attention", "with_precision", "with_sizes",
    "write_workload",
]  # fmt: skip


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
