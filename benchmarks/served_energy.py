"""Errors in energy of served models on published runs of another laboratory (ML.ENERGY leaderboard v2, vLLM 0.5.4, A100 and H100).

    python benchmarks/served_energy.py [--data ../shared/data] [--fit] [--json]

A line for every model, board and number of GPUs, then for all judged models of a board: mean absolute error / mean error / share inside the
stated 90 % interval, in percent, of J per output token, of the time in a slot (mean batch · output / tokens per second), of power and of
TPOT, this where it is a decoding time: within 15 % of a mean step.  "at rest": J/token if waiting boards drew what they draw at rest; "one
rank": the slot if the host's time did not grow with the GPUs; "no host": the slot without the engine's constants.  "fitted": the constants
of `configs/engines/vllm-0.5.toml` and `configs/serving/waiting.toml` come from these runs (--fit); all others judge them.

Lengths of prompts are the source's means (about 90 tokens; code: about 150, assumed).  Runs with pipeline parallelism are left out.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
from served import HOST, Run, answers, fitted, score, slots_s
from showing import DATA, published, show

from estimator import load_gpu
from estimator.bundle.files import load_bundle
from estimator.engine.board import Board, open_board
from estimator.serving import costs
from estimator.serving.answers import ServedEstimate
from estimator.serving.engines import HostTime, Waiting, load_engine, waiting_power

FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
MODELS = {
    "CodeLlama-7b-hf": (4096, 32, 32, 32, 11008, 32016),
    "CodeLlama-13b-hf": (5120, 40, 40, 40, 13824, 32016),
    "CodeLlama-34b-hf": (8192, 48, 64, 8, 22016, 32000),
    "CodeLlama-70b-hf": (8192, 80, 64, 8, 28672, 32016),
    "Meta-Llama-3.1-8B-Instruct": (4096, 32, 32, 8, 14336, 128256),
    "Meta-Llama-3.1-70B-Instruct": (8192, 80, 64, 8, 28672, 128256),
    "Mistral-7B-Instruct-v0.3": (4096, 32, 32, 8, 14336, 32768),
    "Mistral-Nemo-Instruct-2407": (5120, 40, 32, 8, 14336, 131072),
    "Mistral-Large-Instruct-2407": (12288, 88, 96, 8, 28672, 32768),
    "Mixtral-8x7B-Instruct-v0.1": (4096, 32, 32, 8, 14336, 32000),
    "Mixtral-8x22B-Instruct-v0.1": (6144, 56, 48, 8, 16384, 32768),
}
"""Sizes of the models by FIELDS, from their config.json; heads have 128 elements, Mixtral 8 experts of which a token takes 2."""

FITTED = ("Meta-Llama-3.1-8B-Instruct", "Meta-Llama-3.1-70B-Instruct", "CodeLlama-7b-hf")
BOARDS = {"a100-sxm-40gb": "a100-sxm-80gb", "h100-sxm": "h100-sxm"}
"""Bundle of each board of the runs."""

PROMPT = {"chat": "90", "code": "150"}
"""Tokens of a prompt."""


def config_of(model: str) -> Mapping[str, object]:
    """The configuration of a model."""
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2} if model.startswith("Mixtral") else {}
    common = {"name": model, "model_type": "mixtral" if experts else "llama", "head_dim": 128, "torch_dtype": "bfloat16"}
    return {**dict(zip(FIELDS, MODELS[model], strict=True)), **common, **experts}


def runs_of(path: Path) -> dict[tuple[str, str, str, str], list[Run]]:
    """Runs by model, board, GPUs and task, under the names of `benchmarks/served.py`."""
    found = defaultdict(list)
    with path.open() as stream:
        for run in csv.DictReader(stream):
            if run["pp"] == "1":
                own = {
                    "model": "own",
                    "gemm_precision": "",
                    "prompt": PROMPT[run["task"]],
                    "output": str(round(float(run["mean_output_tokens"]))),
                    "tensor_parallel": run["tp"],
                    "concurrency": str(round(float(run["mean_batch"]))),
                }
                found[run["model"].split("/")[1], run["gpu"], run["tp"], run["task"]].append(run | own)
    return found


def measured(runs: Sequence[Run]) -> dict[str, np.ndarray]:
    """Measured values by the names of an answer."""
    columns = {"energy_per_token_j": "energy_per_token_j", "tpot_s": "time_per_output_token_s", "power_w": "power_all_gpus_w"}
    found = {name: np.array([float(run[column]) for run in runs]) for name, column in columns.items()}
    return {**found, "slot_s": np.array([float(run["step_s"]) * float(run["output"]) for run in runs])}


def fits(free: Sequence[tuple[Run, ServedEstimate]]) -> Iterator[dict[str, object]]:
    """Constants of the engine from estimates without a host, and watts of waiting boards from what these leave of the energy."""
    runs, found = [run for run, _ in free], [one for _, one in free]
    truth, output = measured(runs), np.array([float(run["output"]) for run in runs])
    slot, boards = np.array([one.slot_s for one in found]), np.array([float(one.gpus) for one in found])
    host = fitted(HOST["vllm 0.5"], found, output, truth["slot_s"])
    yield dict(host)
    waiting_s = slots_s(host, found, output) - slot
    tokens = np.array([one.running for one in found]) * output
    for gpu in BOARDS:
        own = np.array([run["gpu"] == gpu for run in runs])
        joules = truth["energy_per_token_j"] * tokens
        waited = (waiting_s * boards / joules)[own]
        rest = (1.0 - np.array([one.energy_per_token_j for one in found]) * tokens / joules)[own]
        watts = float(waited @ rest / (waited @ waited))
        yield {"gpu": gpu, "waiting_w": watts, "inside 90 %": float(np.quantile(np.abs(rest / waited / watts - 1.0), 0.9))}


def lines(groups: Mapping[tuple[str, str, str, str], list[Run]], boards: Mapping[str, Board], fit: bool) -> Iterator[dict[str, object]]:
    """Scores by model, board, GPUs and task, and of all judged ones; or the constants that fit."""
    engine = load_engine("vllm-0.5")
    idle = replace(engine, host=HostTime(step_s=0.0, sequence_s=0.0, request_s=0.0, spread=0.0))
    single = replace(engine, host=replace(engine.host, rank_s=0.0))
    free: list[tuple[Run, ServedEstimate]] = []
    judged: dict[str, list[tuple[Run, list[ServedEstimate]]]] = defaultdict(list)
    for (model, gpu, ranks, task), runs in sorted(groups.items()):
        if fit and model not in FITTED:
            continue
        ask = runs, boards[gpu], config_of(model)
        if fit:
            free += [(run, one) for run, one in zip(runs, answers(*ask, idle), strict=True)]
            continue
        found = [answers(*ask, one) for one in (engine, single, idle)]
        with patch.object(costs, "waiting_power", lambda name: Waiting(share=0.0, spread=waiting_power(name).spread, source="none")):
            found.append(answers(*ask, engine))
        kept = [(run, list(own)) for run, *own in zip(runs, *found, strict=True) if own[0].running >= (own[0].batch or 0)]
        label = {"model": model, "gpu": gpu, "ranks": ranks, "task": task, "fitted": str(model in FITTED), "of": len(runs)}
        if model not in FITTED:
            judged[gpu] += kept
        yield {**label, **scores(kept)}
    for gpu, kept in judged.items():
        yield {"all judged on": gpu, **scores(kept)}
    if fit:
        yield from fits(free)


def scores(kept: Sequence[tuple[Run, Sequence[ServedEstimate]]]) -> dict[str, object]:
    """Scores of runs with their estimates: as shipped, one rank, no host, at rest."""
    truth = measured([run for run, _ in kept])
    steady = np.flatnonzero([float(run["step_s"]) < 1.15 * float(run["time_per_output_token_s"]) for run, _ in kept])
    shipped, single, idle, resting = zip(*(own for _, own in kept), strict=True)
    return {
        "runs": len(kept),
        "J/token": score(truth["energy_per_token_j"], shipped, "energy_per_token_j"),
        "slot": score(truth["slot_s"], shipped, "slot_s"),
        "tpot": score(truth["tpot_s"][steady], [shipped[i] for i in steady], "tpot_s") if len(steady) else None,
        "W": score(truth["power_w"], shipped, "power_w"),
        "at rest": score(truth["energy_per_token_j"], resting, "energy_per_token_j"),
        "one rank": score(truth["slot_s"], single, "slot_s"),
        "no host": score(truth["slot_s"], idle, "slot_s"),
    }


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA, show_default=True)
@click.option("--fit", is_flag=True, help="Constants of the engine and of waiting boards instead.")
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, fit: bool, as_json: bool) -> None:
    """Print the errors of every model."""
    table = data / "independent" / "mlenergy_v2_llm_vllm.csv"
    if published(table.parent):
        boards = {gpu: open_board(load_bundle(bundle), gpu=load_gpu(gpu)) for gpu, bundle in BOARDS.items()}
        show(lines(runs_of(table), boards, fit), as_json)


if __name__ == "__main__":
    main()
