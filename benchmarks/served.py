"""Errors of served models on published closed-loop runs of engines.

    python benchmarks/served.py --bundle h100-sxm --bundle h200-sxm [--data ../shared/data] [--configs FOLDER] [--json]

A line for every engine, model, board and number of GPUs: mean absolute error, mean error and share inside the stated 90 % interval, in
percent, of the time in a slot (TTFT + (n − 1) · TPOT: what a client's tokens/s follow from), and of TPOT; "no host": the slot without the
engine's constants; "goal": what the mean absolute error should be; "fitted": the constants come from these runs (`configs/engines`).

Left out are runs whose GPUs do not follow from the table (copies of the attention, several nodes), boards without a bundle, and runs of
which not all requests fit into the memory ("of": with these).  Runs with lengths in whole thousands stand apart: they come from another
protocol, and those of vLLM and of TensorRT-LLM 1.2 are faster than all others by 1.5 to 3 times, as if prompts were cached.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from scipy.optimize import nnls
from showing import DATA, published, show

from estimator.bundle.files import load_bundle
from estimator.engine.board import Board, open_board
from estimator.serving.answers import ServedEstimate, Serving, serve_many
from estimator.serving.engines import Engine, HostTime, load_engine
from estimator.vocabulary.errors import EstimatorError

MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
ENGINES = {"trtllm": "tensorrt-llm", "vllm": "vllm", "sglang": "sglang"}
FITTED = {("trtllm", "llama-3.1-8b"), ("vllm", "qwen3-32b"), ("sglang", "qwen3-32b")}
"""Runs to which the host's constants of an engine were fitted."""

GOALS = {"deepseek-v3": 20.0, "gpt-oss-120b": 20.0, "qwen3-32b": 6.0, "llama-3.1-8b": 8.0}
"""Mean absolute error of the time in a slot that is asked for [%]."""

Run = Mapping[str, str]
Errors = tuple[float, float, float]


def weights_of(run: Run, model: str) -> str:
    """The precision of a run's checkpoint: gpt-oss and DeepSeek-V3 exist in one; per tensor fp8 has static scales."""
    if model == "gpt-oss-120b":
        return "mxfp4-mxfp8" if run["gpu"].startswith(("b", "gb")) else "mxfp4"  # Blackwell converts the activations too
    return {"": "bf16", "fp8": "fp8-block" if model == "deepseek-v3" else "fp8-static", "fp8_block": "fp8-block", "nvfp4": "nvfp4"}[
        run["gemm_precision"]
    ]


def plain_runs(path: Path) -> Iterator[Run]:
    """Runs of tensor parallelism alone on up to 8 GPUs."""
    with path.open() as stream:
        for run in csv.DictReader(stream):
            ranks = int(run["tensor_parallel"])
            moe = int(run["moe_tensor_parallel"]) in (0, 1, ranks) and int(run["moe_expert_parallel"]) in (0, 1)
            if ranks <= 8 and moe and run["attention_data_parallel"] in ("", "0", "1"):
                yield run


def other_protocol(run: Run) -> str:
    """A word for runs with lengths in whole thousands, nothing for others."""
    return "thousands" if int(run["prompt"]) % 1000 == 0 else ""


def answers(runs: Sequence[Run], board: Board, config: str | Mapping[str, object], engine: Engine) -> list[ServedEstimate]:
    """Estimates of runs that differ in lengths and load."""
    loads: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, run in enumerate(runs):
        loads[run["prompt"], run["output"], run["tensor_parallel"]].append(i)
    found: dict[int, ServedEstimate] = {}
    for (prompt, output, ranks), own in loads.items():
        first = runs[own[0]]
        serving = Serving(
            model=config,
            prompt=int(prompt),
            output=int(output),
            tensor_parallel=int(ranks),
            weights=weights_of(first, MODELS.get(first["model"], "")),
            engine=engine,
        )
        found |= dict(zip(own, serve_many(serving, board, [int(runs[i]["concurrency"]) for i in own]), strict=True))
    return [found[i] for i in range(len(runs))]


def host_columns(estimates: Sequence[ServedEstimate], output: np.ndarray) -> np.ndarray:
    """How often a slot's time holds the host's time of a step, of a sequence, of a request and of another GPU (n, 4)."""
    steps, running, gpus = output - 1.0, np.array([one.running for one in estimates]), np.array([one.gpus for one in estimates])
    return np.stack([steps, steps * running, running, steps * (gpus - 1.0)], axis=1)


def fitted(measured: np.ndarray, output: np.ndarray, estimates: Sequence[ServedEstimate], slot_s: np.ndarray) -> dict[str, float]:
    """Constants of an engine by runs and estimates without a host: least squares of relative errors of the time in a slot, and a median."""
    steps, running = output - 1.0, np.array([one.running for one in estimates])
    free = np.array([one.slot_s for one in estimates])
    columns = host_columns(estimates, output)
    constants, _ = nnls(columns / slot_s[:, None], 1.0 - free / slot_s)
    prompts_s = free * np.array([one.parts["prompts"] for one in estimates])
    decode_s = (free - prompts_s) / steps + columns[:, [0, 1, 3]] @ constants[[0, 1, 3]] / steps
    waited = (running - 1.0) / steps * (prompts_s / running + constants[2])
    queued = float(np.median(1.0 - (measured - decode_s)[waited > 0.0] / waited[waited > 0.0]))
    return dict(zip(("step_s", "sequence_s", "request_s", "rank_s"), map(float, constants), strict=True)) | {"queued": queued}


def score(measured: np.ndarray, estimates: Sequence[ServedEstimate], name: str) -> Errors:
    """Mean absolute error, mean error, share inside the interval [%]."""
    value, low, high = (np.array([getattr(one, f"{name}{end}") for one in estimates]) for end in ("", "_low", "_high"))
    error, inside = 100.0 * (value / measured - 1.0), (low <= measured) & (measured <= high)
    return float(np.mean(np.abs(error))), float(np.mean(error)), 100.0 * float(np.mean(inside))


def lines(runs: Sequence[Run], boards: Mapping[str, Board], configs: Path | None, fit: bool) -> Iterator[dict[str, object]]:
    """Scores by engine and its version, model, precision, board and ranks, or the constants that fit such runs; then of all runs."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        version, model = ".".join(run["engine_version"].split(".")[:2]), MODELS[run["model"]]
        ranks = "" if fit else run["tensor_parallel"]
        groups[run["engine"], version, model, run["gpu"], weights_of(run, model), other_protocol(run), ranks].append(run)
    inside: dict[str, list[bool]] = defaultdict(list)
    for (engine, version, model, gpu, weights, protocol, ranks), own in sorted(groups.items()):
        constants = load_engine("-".join(filter(None, (ENGINES[engine], version))))
        label = {
            "engine": f"{engine} {version}".strip(),
            "model": model,
            "gpu": gpu,
            "weights": weights,
            "lengths": protocol,
            "ranks": ranks,
        }
        label["ranks"] = ranks
        source = (engine, model) in FITTED and weights == "bf16" and not protocol
        if gpu not in boards or (fit and not source):
            continue
        idle = replace(constants, host=HostTime(step_s=0.0, sequence_s=0.0, request_s=0.0, spread=0.0))
        config = str(configs / f"{model}.json") if configs else model
        try:
            found, without = (answers(own, boards[gpu], config, one) for one in (constants, idle))
        except EstimatorError as error:
            yield {**label, "runs": len(own), "refused": str(error)}
            continue
        keep = [i for i, one in enumerate(found) if not one.state and one.running >= (one.batch or 0)]
        if not keep:
            yield {**label, "runs": 0, "of": len(own), "refused": found[0].state}
            continue
        found, without = [found[i] for i in keep], [without[i] for i in keep]
        tpot, ttft, output = (np.array([float(own[i][name]) for i in keep]) for name in ("tpot_s", "ttft_s", "output"))
        slot = ttft + (output - 1.0) * tpot
        if fit:
            yield {**label, "runs": len(keep), **fitted(tpot, output, without, slot)}
            continue
        inside[protocol] += [one.slot_s_low <= value <= one.slot_s_high for one, value in zip(found, slot, strict=True)]
        first = np.mean([one.ttft_s_low <= value <= one.ttft_s_high for one, value in zip(found, ttft, strict=True)])
        yield {
            **label,
            "runs": len(keep),
            "of": len(own),
            "slot": score(slot, found, "slot_s"),
            "tpot": score(tpot, found, "tpot_s"),
            "ttft inside": 100.0 * float(first),
            "no host": score(slot, without, "slot_s"),
            "goal": 3.0 if (engine, model, ranks) == ("trtllm", "llama-3.1-8b", "1") else GOALS[model],
            "fitted": str(source),
        }
    for protocol, one in inside.items():
        yield {"all runs": protocol, "runs": len(one), "slot inside": 100.0 * float(np.mean(one))}


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA, show_default=True)
@click.option("--bundle", "bundles", multiple=True, required=True, help="Bundles of the boards, by name or file.")
@click.option("--configs", type=click.Path(path_type=Path), help="Folder of configurations, MODEL.json; else the shipped ones.")
@click.option("--fit", is_flag=True, help="Constants of the engines instead, each from the runs of one model.")
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, bundles: Sequence[str], configs: Path | None, fit: bool, as_json: bool) -> None:
    """Print the errors of every group of runs."""
    table = data / "aiconfigurator-2" / "served.csv"
    if published(table.parent):
        boards = {one.gpu.name: open_board(one) for one in map(load_bundle, bundles)}
        show(lines(list(plain_runs(table)), boards, configs, fit), as_json)


if __name__ == "__main__":
    main()
