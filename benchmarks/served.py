"""Errors of served models on published closed-loop runs of engines.

    python benchmarks/served.py [--bundle h100-sxm …] [--data ../shared/data] [--configs FOLDER] [--json]

A line for every engine, model, board and number of GPUs: mean absolute error, mean error and share inside the stated 90 % interval, in
percent, of the time in a slot (TTFT + (n − 1) · TPOT: what a client's tokens/s follow from), and of TPOT.  The slot without a part: "no
host": without the engine's constants; "plain host": without its time of further GPUs and beside the boards.  "goal": of the mean absolute
error; "fitted": the constants come from these runs (--fit).

Left out are runs whose GPUs do not follow from the table (copies of the attention, several nodes), boards without a bundle, and runs of
which not all requests fit into the memory ("of": with these).  Two kinds stand apart ("lengths").  "thousands": lengths in whole thousands,
of another protocol; those of vLLM and of TensorRT-LLM 1.2 are faster than all others by 1.5 to 3 times, as if prompts were cached.
"waiting": most requests wait for a slot.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import numpy as np
from scipy.optimize import least_squares
from showing import DATA, published, show

from estimator.bundle.files import load_bundle
from estimator.engine.board import Board, open_board
from estimator.serving.answers import ServedEstimate, Serving, serve_many
from estimator.serving.architecture import read_config
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
FITTED = {
    ("trtllm 1.0", "llama-3.1-8b", "bf16"),
    ("vllm 0.12", "qwen3-32b", "bf16"),
    ("vllm 0.15", "gpt-oss-120b", "mxfp4-mxfp8"),
    ("sglang 0.5", "qwen3-32b", "bf16"),
    ("sglang 0.5", "llama-3.1-8b", "fp8-block"),
}
"""Runs to which the host's constants of an engine were fitted."""

BUNDLES = ("h100-sxm", "h200-sxm", "b200-sxm")

GOALS = {"deepseek-v3": 20.0, "gpt-oss-120b": 20.0, "qwen3-32b": 6.0, "llama-3.1-8b": 8.0}
"""Mean absolute error of the time in a slot that is asked for [%]."""

NORMAL_90 = 1.645
"""Half width of a normal distribution's 90 % interval, in standard deviations."""

Run = Mapping[str, str]
Errors = tuple[float, float, float]


def weights_of(run: Run, model: str) -> str:
    """The precision of a run's checkpoint.  gpt-oss exists in one.  The fp8 ones that the makers of DeepSeek-V3 and Qwen3-32B publish have
    blocks, which the table does not tell from fp8 per tensor; this has static scales.
    """
    if model == "gpt-oss-120b":
        return "mxfp4-mxfp8" if run["gpu"].startswith(("b", "gb")) else "mxfp4"  # Blackwell converts the activations too
    blocks = model == "deepseek-v3" or (model == "qwen3-32b" and run["engine"] == "trtllm")
    return {"": "bf16", "fp8": "fp8-block" if blocks else "fp8-static", "fp8_block": "fp8-block", "nvfp4": "nvfp4"}[run["gemm_precision"]]


MEAN_LENGTH = 0.9
"""Mean over nominal length of the requests of InferenceMAX, from which the runs of DeepSeek-V3 and gpt-oss-120b are: lengths are drawn
evenly between 0.8 and 1 (its benchmarks/*.sh, RANDOM_RANGE_RATIO)."""

MOST_WAITING = 0.6
"""Largest share of a slot's time before the first token where the requests in flight run: beyond, the engine ran fewer by a limit or a
memory that the table does not state."""


def cache_of(run: Run) -> str:
    """The precision of a run's cache.  InferenceMAX names it in its scripts; in the others the requests that run show it.

    TensorRT-LLM's fp8 runs of Qwen3-32B on one H100 hold 107 of 128 requests of 2,304 tokens; 16 bits leave room for 68.
    """
    if MODELS[run["model"]] == "deepseek-v3":
        return "bf16" if (run["engine"], run["gpu"]) == ("sglang", "h200-sxm") else "fp8"
    if MODELS[run["model"]] == "gpt-oss-120b":
        return "fp8" if run["gpu"].startswith("b") else "bf16"
    return "fp8" if run["engine"] == "trtllm" and run["gemm_precision"] == "fp8" else "bf16"


def as_run(run: Run) -> Run:
    """A run with the mean lengths of its requests, and with the requests that its engine ran at a time.

    Of the requests for Llama-3.1-8B under TensorRT-LLM 1.0 one always waits for a slot: with 8 in flight the mean time to the first token
    is an eighth of a slot's, for every prompt and output.  No other group does so.
    """
    own = dict(run)
    if MODELS[run["model"]] in ("deepseek-v3", "gpt-oss-120b") and int(run["prompt"]) % 1000:
        own |= {name: str(round(MEAN_LENGTH * int(run[name]))) for name in ("prompt", "output")}
    if (run["engine"], run["engine_version"][:3], MODELS[run["model"]]) == ("trtllm", "1.0", "llama-3.1-8b"):
        slot_s, flight = float(run["ttft_s"]) + (int(run["output"]) - 1) * float(run["tpot_s"]), int(run["concurrency"])
        own |= {"concurrency": str(flight - 1), "ttft_s": str(float(run["ttft_s"]) - slot_s / flight)}
    return own


def plain_runs(path: Path) -> Iterator[Run]:
    """Runs of tensor parallelism alone on up to 8 GPUs."""
    with path.open() as stream:
        for run in csv.DictReader(stream):
            ranks = int(run["tensor_parallel"])
            moe = int(run["moe_tensor_parallel"]) in (0, 1, ranks) and int(run["moe_expert_parallel"]) in (0, 1)
            if ranks <= 8 and moe and run["attention_data_parallel"] in ("", "0", "1"):
                yield as_run(run)


def other_protocol(run: Run) -> str:
    """A word for runs with lengths in whole thousands, and for those in which most requests wait for a slot; nothing for others."""
    slot_s = float(run["ttft_s"]) + (int(run["output"]) - 1) * float(run["tpot_s"])
    return "thousands" if int(run["prompt"]) % 1000 == 0 else "waiting" if float(run["ttft_s"]) > MOST_WAITING * slot_s else ""


NVFP4: dict[str, object] = {
    "quantization_config": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": [f"re:.*{name}.*" for name in ("q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj")],
    }
}
"""The nvfp4 checkpoint of DeepSeek-V3 that InferenceMAX serves leaves products of queries and keys in 16 bits.
Source: model card of nvidia/DeepSeek-R1-0528-FP4-v2."""


def answers(runs: Sequence[Run], board: Board, config: str | Mapping[str, object], engine: Engine) -> list[ServedEstimate]:
    """Estimates of runs that differ in lengths and load."""
    loads: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, run in enumerate(runs):
        loads[run["prompt"], run["output"], run["tensor_parallel"]].append(i)
    found: dict[int, ServedEstimate] = {}
    for (prompt, output, ranks), own in loads.items():
        first = runs[own[0]]
        weights: str | None = weights_of(first, MODELS.get(first["model"], ""))
        model = config
        if MODELS.get(first["model"]) == "deepseek-v3" and weights == "nvfp4":
            model, weights = {**read_config(config), **NVFP4}, None
        serving = Serving(
            model=model,
            prompt=int(prompt),
            output=int(output),
            tensor_parallel=int(ranks),
            weights=weights,
            kv=cache_of(first) if first["model"] in MODELS else None,
            engine=engine,
        )
        found |= dict(zip(own, serve_many(serving, board, [int(runs[i]["concurrency"]) for i in own]), strict=True))
    return [found[i] for i in range(len(runs))]


HOST = {
    "trtllm 1.0": {"rank_s": 1e-4, "overlapped_step_s": 2e-3, "overlapped_sequence_s": 5e-5, "overlapped_layer_s": 5e-4},
    "vllm 0.5": {"step_s": 5e-4, "sequence_s": 1e-5, "request_s": 1e-3, "rank_s": 1e-4},
    "vllm 0.12": {"step_s": 5e-4, "sequence_s": 1e-5, "request_s": 1e-3, "rank_s": 1e-4},
    "vllm 0.15": {"step_s": 5e-4, "overlapped_step_s": 2e-3, "overlapped_sequence_s": 5e-5},
    "sglang 0.5": {"overlapped_sequence_s": 4e-5},
}
"""Constants of each engine's host that are fitted, from these values on; others are 0."""


LAYERS, CHUNK = 32, 8192
"""Layers of Llama-3.1-8B, to which the constant of the only engine is fitted that launches prompts layer by layer, and its chunk."""


def slots_s(host: Mapping[str, float], estimates: Sequence[ServedEstimate], output: np.ndarray) -> np.ndarray:
    """Time in a slot [s] with a host's constants, from estimates without a host."""
    constant = {name: host.get(name, 0.0) for name in HostTime.__slots__}
    turns, running, gpus = output - 1.0, np.array([one.running for one in estimates]), np.array([one.gpus for one in estimates])
    boards_s, prompts, share = np.array([(one.slot_s, one.prompt / CHUNK, one.parts["prompts"]) for one in estimates]).T
    own = constant["step_s"] + constant["sequence_s"] * running + constant["rank_s"] * (gpus - 1.0)
    with_prompts = np.maximum(np.minimum(turns, running), running * prompts)
    mixed, prompts_s = np.minimum(turns, with_prompts), share * boards_s
    over_s = constant["overlapped_step_s"] + constant["overlapped_sequence_s"] * running - (boards_s - prompts_s) / turns
    late_s = np.maximum(mixed * over_s + with_prompts * LAYERS * constant["overlapped_layer_s"] - prompts_s, 0.0)
    late_s += (turns - mixed) * np.maximum(over_s, 0.0)
    return turns * own + running * constant["request_s"] + boards_s + late_s


def fitted(start: Mapping[str, float], estimates: Sequence[ServedEstimate], output: np.ndarray, slot_s: np.ndarray) -> dict[str, float]:
    """Constants of a host by estimates without one: least squares of relative errors of the time in a slot."""

    def host(factors: np.ndarray) -> dict[str, float]:
        return {name: float(factor * value) for factor, (name, value) in zip(factors, start.items(), strict=True)}

    found = least_squares(
        lambda factors: slots_s(host(factors), estimates, output) / slot_s - 1.0, np.ones(len(start)), bounds=(0.0, np.inf)
    )
    return host(found.x)


def queued(host: Mapping[str, float], estimates: Sequence[ServedEstimate], output: np.ndarray, tpot_s: np.ndarray) -> float:
    """Median share of the waiting for prompts of others that passes before a request's first token."""
    running, turns = np.array([one.running for one in estimates]), output - 1.0
    prompts_s = np.array([one.slot_s * one.parts["prompts"] for one in estimates]) + running * host.get("request_s", 0.0)
    decode_s = (slots_s(host, estimates, output) - prompts_s) / turns
    waited = (running - 1.0) / turns * prompts_s / running
    return float(np.median(1.0 - (tpot_s - decode_s)[waited > 0.0] / waited[waited > 0.0]))


def score(measured: np.ndarray, estimates: Sequence[ServedEstimate], name: str) -> Errors:
    """Mean absolute error, mean error, share inside the interval [%]."""
    value, low, high = (np.array([getattr(one, f"{name}{end}") for one in estimates]) for end in ("", "_low", "_high"))
    error, inside = 100.0 * (value / measured - 1.0), (low <= measured) & (measured <= high)
    return float(np.mean(np.abs(error))), float(np.mean(error)), 100.0 * float(np.mean(inside))


def stated_errors(measured: np.ndarray, estimates: Sequence[ServedEstimate], name: str) -> np.ndarray:
    """Errors over the stated standard errors [1]: of logarithms, whose 90 % interval is taken for a normal one."""
    value, low, high = (np.array([getattr(one, f"{name}{end}") for one in estimates]) for end in ("", "_low", "_high"))
    result: np.ndarray = NORMAL_90 * np.log(measured / value) / (0.5 * np.log(high / low))
    return result


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one engine, model, precision, board and number of GPUs, with estimates: as shipped (`found`), and without a part by its name.

    source: whether constants come from them; refused: why there are no estimates.
    """

    label: Mapping[str, object]
    engine: str
    source: bool
    runs: Sequence[Run] = ()
    asked: int = 0
    found: Sequence[ServedEstimate] = ()
    without: Mapping[str, Sequence[ServedEstimate]] = field(default_factory=dict)
    refused: str = ""

    def measured(self, name: str) -> np.ndarray:
        """A column of the runs, or their time in a slot."""
        if name == "slot_s":
            return self.measured("ttft_s") + (self.measured("output") - 1.0) * self.measured("tpot_s")
        return np.array([float(run[name]) for run in self.runs])


def groups_of(runs: Sequence[Run], boards: Mapping[str, Board], configs: Path | None) -> Iterator[Group]:
    """Groups on the boards, without the runs whose requests do not all fit into the memory."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        version, model = ".".join(run["engine_version"].split(".")[:2]), MODELS[run["model"]]
        groups[run["engine"], version, model, run["gpu"], weights_of(run, model), other_protocol(run), run["tensor_parallel"]].append(run)
    for (engine, version, model, gpu, weights, protocol, ranks), own in sorted(groups.items()):
        if gpu not in boards:
            continue
        names = {"model": model, "gpu": gpu, "weights": weights, "lengths": protocol, "ranks": ranks}
        label = {"engine": f"{engine} {version}".strip(), **names}
        source = (label["engine"], model, weights) in FITTED
        shipped = load_engine("-".join(filter(None, (ENGINES[engine], version))))
        config = str(configs / f"{model}.json") if configs else model
        try:
            found = answers(own, boards[gpu], config, shipped)
            without = {name: answers(own, boards[gpu], config, one) for name, one in ablations(shipped).items()}
        except EstimatorError as error:
            yield Group(label=label, engine=label["engine"], source=source, asked=len(own), refused=str(error))
            continue
        keep = [i for i, one in enumerate(found) if not one.state and one.running >= (one.batch or 0)]
        yield Group(
            label=label,
            engine=label["engine"],
            source=source,
            runs=[own[i] for i in keep],
            asked=len(own),
            found=[found[i] for i in keep],
            without={name: [one[i] for i in keep] for name, one in without.items()},
            refused="" if keep else found[0].state,
        )


def ablations(engine: Engine) -> dict[str, Engine]:
    """The engine without its host, and with a host of three constants: without GPUs beyond the first and without overlap."""
    plain = replace(engine.host, rank_s=0.0, overlapped_step_s=0.0, overlapped_sequence_s=0.0, overlapped_layer_s=0.0)
    idle = HostTime(step_s=0.0, sequence_s=0.0, request_s=0.0, spread=0.0)
    return {"no host": replace(engine, host=idle), "plain host": replace(engine, host=plain)}


def scores(groups: Iterator[Group]) -> Iterator[dict[str, object]]:
    """Scores of every group; then of all runs, of each model, of runs whose host was not fitted to them, and of those that stand apart."""
    together: dict[object, list[np.ndarray]] = defaultdict(list)
    for one in groups:
        if not one.runs:
            yield {**one.label, "runs": 0, "of": one.asked, "refused": one.refused}
            continue
        slot, ttft = one.measured("slot_s"), one.measured("ttft_s")
        judged = "" if one.source else "not fitted"
        for name in dict.fromkeys((one.label["lengths"], one.label["lengths"] or one.label["model"], one.label["lengths"] or judged)):
            together[name].append(stated_errors(slot, one.found, "slot_s"))
        yield {
            **one.label,
            "runs": len(one.runs),
            "of": one.asked,
            "slot": score(slot, one.found, "slot_s"),
            "tpot": score(one.measured("tpot_s"), one.found, "tpot_s"),
            "ttft inside": 100.0
            * float(np.mean([a.ttft_s_low <= value <= a.ttft_s_high for a, value in zip(one.found, ttft, strict=True)])),
            **{name: score(slot, own, "slot_s") for name, own in one.without.items()},
            "goal": 3.0
            if (one.engine, one.label["model"], one.label["ranks"]) == ("trtllm 1.0", "llama-3.1-8b", "1")
            else GOALS[str(one.label["model"])],
            "fitted": str(one.source),
        }
    for protocol, errors in together.items():
        every = np.concatenate(errors)
        inside = 100.0 * float(np.mean(np.abs(every) <= NORMAL_90))
        yield {
            "all runs": protocol,
            "runs": len(every),
            "slot inside": inside,
            "error over stated error": float(np.sqrt(np.mean(every**2))),
        }


def fits(groups: Iterator[Group]) -> Iterator[dict[str, object]]:
    """Constants of every engine, from all runs of the models that serve for it."""
    own: dict[str, list[Group]] = defaultdict(list)
    for one in groups:
        if one.source and one.runs and one.label["lengths"] != "waiting":
            own[one.engine].append(one)
    for engine, parts in own.items():
        free = [one for part in parts for one in part.without["no host"]]
        slot, tpot, output = (np.concatenate([part.measured(name) for part in parts]) for name in ("slot_s", "tpot_s", "output"))
        host = fitted(HOST[engine], free, output, slot)
        yield {"engine": engine, "runs": len(free), **host, "queued": queued(host, free, output, tpot)}


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA, show_default=True)
@click.option("--bundle", "bundles", multiple=True, default=BUNDLES, show_default=True, help="Bundles of the boards, by name or file.")
@click.option("--configs", type=click.Path(path_type=Path), help="Folder of configurations, MODEL.json; else the shipped ones.")
@click.option("--fit", is_flag=True, help="Constants of the engines instead.")
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, bundles: Sequence[str], configs: Path | None, fit: bool, as_json: bool) -> None:
    """Print the errors of every group of runs."""
    table = data / "aiconfigurator-2" / "served.csv"
    if published(table.parent):
        boards = {one.gpu.name: open_board(one) for one in map(load_bundle, bundles)}
        groups = groups_of(list(plain_runs(table)), boards, configs)
        show(fits(groups) if fit else scores(groups), as_json)


if __name__ == "__main__":
    main()
