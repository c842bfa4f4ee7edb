"""From dispatched operations of a framework to operators of a workload; independent of the framework itself.

`calls` describes dispatched operations in plain terms, `lowering` and the modules beside it convert them to operators,
`models` holds the configurations from which models are built.  Only `estimator.tracing.torch_trace` uses PyTorch.
"""
