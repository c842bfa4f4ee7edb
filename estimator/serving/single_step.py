"""One step of a served model as a workload of its own: a pass over whole prompts, or a token of each running sequence."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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
    model: str | Path | Mapping[str, object],
    phase: str,
    *,
    batch: int = 1,
    sequence: int = 512,
    weights: str | None = None,
    kv: str | None = None,
    tensor_parallel: int = 1,
) -> Variant:
    """One step on one GPU of `tensor_parallel`, as the usual engine launches it, without its host.

    phase: "prefill", `batch` prompts of `sequence` tokens, or "decode", a token of each of `batch` sequences, which attends to `sequence`
    tokens; weights, kv: as of `estimator.serving.answers.Serving`.

    Raises WorkloadError for a model that is not served, a layout that does not divide it, and tokens beyond its context.
    """
    if phase not in ("prefill", "decode"):
        raise WorkloadError(f"{model}: an engine serves no step of phase {phase}; choose --runtime eager or compiled")
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
    words = [architecture.name, phase, f"b{batch}", f"s{sequence}", formats.layer, f"kv-{formats.cache}", "serving"]
    told = [f"runtime serving: kernels as {engine.label} launches them, without its host's time (estimate llm has it)"]
    if tensor_parallel > 1:
        words.append(f"tp{tensor_parallel}")
        told.append(f"one of {tensor_parallel} GPUs that share every layer: power, energy and tokens are its share")
    return Variant(
        workload=replace(workload, name="-".join(words), notes=(*told, *workload.notes), footprint=held),
        batch=batch,
        sequence=sequence,
        tokens=step.tokens / tensor_parallel,
        precision=formats.experts,
        attention="flash",
    )
