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
    from estimator.bundle import bundle_names, load_bundle
    from estimator.bundle_content import Bundle
    from estimator.comparison import Comparison, compare
    from estimator.costs import Tariff, cost_columns
    from estimator.errors import BundleError, EstimatorError, OperatingPointError, SpecificationError, WorkloadError
    from estimator.explanation import Explanation, explain
    from estimator.formats import read_workload, write_workload
    from estimator.gpu import GpuSpec
    from estimator.judging import Asked
    from estimator.kernel_prediction import KernelTable, predict_kernels
    from estimator.points import Case, Sweep
    from estimator.prediction import Estimate, KernelEstimate, estimate
    from estimator.questions import Best, Gain, best, pareto_front
    from estimator.rescaling import Sizes, with_sizes
    from estimator.rewriting import with_attention, with_precision
    from estimator.specifications import load_gpu, override_gpu
    from estimator.sweeping import sweep, sweep_chunks
    from estimator.variation import Variant, variants
    from estimator.workload import Operator, Workload, make_operator, merge_operators

__version__ = "0.1.0"

_HOME = {
    "Asked": "estimator.judging",
    "Best": "estimator.questions",
    "Bundle": "estimator.bundle_content",
    "BundleError": "estimator.errors",
    "Case": "estimator.points",
    "Comparison": "estimator.comparison",
    "Estimate": "estimator.prediction",
    "EstimatorError": "estimator.errors",
    "Explanation": "estimator.explanation",
    "Gain": "estimator.questions",
    "GpuSpec": "estimator.gpu",
    "KernelEstimate": "estimator.prediction",
    "KernelTable": "estimator.kernel_prediction",
    "OperatingPointError": "estimator.errors",
    "Operator": "estimator.workload",
    "Sizes": "estimator.rescaling",
    "SpecificationError": "estimator.errors",
    "Sweep": "estimator.points",
    "Tariff": "estimator.costs",
    "Variant": "estimator.variation",
    "Workload": "estimator.workload",
    "WorkloadError": "estimator.errors",
    "best": "estimator.questions",
    "bundle_names": "estimator.bundle",
    "compare": "estimator.comparison",
    "cost_columns": "estimator.costs",
    "estimate": "estimator.prediction",
    "explain": "estimator.explanation",
    "load_bundle": "estimator.bundle",
    "load_gpu": "estimator.specifications",
    "make_operator": "estimator.workload",
    "merge_operators": "estimator.workload",
    "override_gpu": "estimator.specifications",
    "pareto_front": "estimator.questions",
    "predict_kernels": "estimator.kernel_prediction",
    "read_workload": "estimator.formats",
    "sweep": "estimator.sweeping",
    "sweep_chunks": "estimator.sweeping",
    "variants": "estimator.variation",
    "with_attention": "estimator.rewriting",
    "with_precision": "estimator.rewriting",
    "with_sizes": "estimator.rescaling",
    "write_workload": "estimator.formats",
}

__all__ = [
    "Asked", "Best", "Bundle", "BundleError", "Case", "Comparison", "Estimate", "EstimatorError", "Explanation", "Gain", "GpuSpec",
    "KernelEstimate", "KernelTable", "OperatingPointError", "Operator", "Sizes", "SpecificationError", "Sweep", "Tariff", "Variant",
    "Workload", "WorkloadError", "__version__", "best", "bundle_names", "compare", "cost_columns", "estimate", "explain", "load_bundle",
    "load_gpu", "make_operator", "merge_operators", "override_gpu", "pareto_front", "predict_kernels", "read_workload", "sweep",
    "sweep_chunks", "variants", "with_attention", "with_precision", "with_sizes", "write_workload",
]  # fmt: skip


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
