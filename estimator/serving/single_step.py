"""One step of a served model as a workload of its own: a pass over whole prompts, or a token of each running sequence."""

from dataclasses import replace

from estimator.serving.architecture import Layout, read_architecture, read_config
from estimator.serving.engines import load_engine
from estimator.serving.steps import Step, cache_bytes, step_workload, weight_bytes
from estimator.serving.weights import read_weights
from estimator.transforms.variation import Variant
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.workload import Footprint


def is_served(model: str) -> bool:
    """Whether a model's name or configuration is one of an architecture that engines serve."""
    try:
        read_architecture(model)
    except WorkloadError:
        return False
    return True


def single_step(
    model: str,
    phase: str,
    *,
    batch: int = 1,
    sequence: int = 512,
    weights: str | None = None,
    kv: str | None = None,
    tensor_parallel: int = 1,
) -> Variant:
    """One step of a group of `tensor_parallel` GPUs, as the usual engine launches it on each, without its host.

    phase: "decode", a token of each of `batch` sequences, which attends to `sequence` tokens, or "prefill", `batch` prompts of `sequence`
    tokens; weights, kv: as of `estimator.serving.answers.Serving`.

    Raises WorkloadError for a model that is not served, a layout that does not divide it, and tokens beyond its context.
    """
    config, engine = read_config(model), load_engine()
    architecture, formats = read_architecture(config), read_weights(config, weights, kv)
    layout = Layout(tensor_parallel=tensor_parallel)
    decode = phase == "decode"
    step = Step(sequences=batch, context=sequence) if decode else Step(prompts=((sequence, sequence),) * batch)
    workload = step_workload(architecture, formats, layout, step, engine.library)
    held = Footprint(
        weights_byte=weight_bytes(architecture, formats, layout),
        cache_byte=batch * sequence * cache_bytes(architecture, formats, layout, context=sequence),
        passing_byte=engine.reserve_bytes,
    )
    name = f"{architecture.name}-{phase}-b{batch}-s{sequence}-{formats.layer}-kv-{formats.cache}-serving"
    name += f"-tp{tensor_parallel}" if tensor_parallel > 1 else ""
    told = f"kernels as {engine.label} launches them on each GPU, without its host (estimate llm has it)"
    return Variant(
        workload=replace(workload, name=name, notes=(told, *workload.notes), footprint=held),
        batch=batch,
        sequence=sequence,
        tokens=step.tokens,
    )
