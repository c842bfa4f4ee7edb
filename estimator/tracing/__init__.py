"""From what a framework dispatched to operators of a workload; free of the framework itself.

`calls` describes dispatched operations in plain terms, `lowering` and the modules beside it turn them into operators,
`models` holds the configurations that models are built from.  `estimator.tracing.torch_trace` alone knows PyTorch.
"""
