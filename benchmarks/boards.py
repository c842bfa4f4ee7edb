"""Shipped bundles on measurements that no bundle was fitted to: other laboratories, hosts and boards, each beside its goal.

    python benchmarks/boards.py [--data ../shared/data] [--bundles bundles] [--json] [SECTION...]

Mean absolute errors with their bias, in percent; "inside": shares of latencies and powers in their stated 90 % intervals.  Every section
names its way: the bundle of the board, or another board's by specification.

The sections diffusion and zeus trace their networks with PyTorch: `make test-torch`, then with `build/torch/bin/python`.

halves         half of the H100's runs → the other half
specification  A100 → H100 by specification, runs from 20 ms on; without the rules of `estimator.model.silicon`
diffusion      Stable Diffusion 1.5 and XL of ML.ENERGY: UNets and what is between them, decoder, both texts; "/busy": measured above 0.9 of
               the limit; "host's pace": the launch cost that batch 1, which is left out, shows
zeus           training under limits: time over that at the highest one, and power; from batch 32 on
vidur          products of vidur by length of the kernel
energy         power at rest; power of kernels below the limit, and times of those at it, whose energy sets their clock: a product on a
               small board; products and attention of AIConfigurator on GB200 and H200
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import pandas as pd
from board_power import fitted, read_board, score, without
from showing import DATA, published, show
from whole_models import by_length, half_outcomes, mean_score

from estimator import estimate, load_bundle
from estimator.bundle.content import Bundle
from estimator.engine.board import board_tables
from estimator.tracing.models import TraceRequest
from estimator.uncertainty.laboratory import host_of
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90, Array
from estimator.vocabulary.specifications import load_gpu
from estimator.vocabulary.workload import FLASH_ATTENTION, Workload, make_operator
from fitter.rows.selection import read_selection
from fitter.validate.predictions import predict_kernel_rows

ROOT = Path(__file__).resolve().parent.parent

OWN = {
    "a100-sxm-40gb": ("a100-pcie-40gb-eager", "a100-sxm-80gb"),
    "a100-sxm-80gb": ("a100-sxm-80gb",),
    "h100-sxm": ("a100-pcie-40gb-eager", "h100-sxm"),
    "a40": ("a10-eager",),
    "quadro-rtx-6000": ("a10-eager",),
    "v100-pcie-32gb": ("a100-pcie-40gb-eager", "v100-pcie-32gb"),
}
"""Bundles with which a board is forecast."""

GOALS = {
    "halves": (4.0, 2.5),
    "specification": (4.0, 6.0),
    "diffusion a100-sxm-40gb": (9.0, 3.0),
    "diffusion h100-sxm": (12.0, 7.0),
    "zeus": (10.0, 6.0),
    "vidur a100-sxm-80gb": (9.0, None),
    "vidur h100-sxm": (12.0, None),
    "energy": (None, 10.0),
}
"""Mean errors to reach, latency and power [%]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors [%] of one forecast; nan: not asked."""

    section: str
    way: str
    rows: int = 0
    latency: float = np.nan
    latency_bias: float = np.nan
    latency_inside: float = np.nan
    power: float = np.nan
    power_bias: float = np.nan
    power_inside: float = np.nan
    goal: tuple[float | None, float | None] = (None, None)
    worst: str = ""


def scored(section: str, way: str, found: pd.DataFrame, goal: str = "") -> Score:
    """The score of rows with measured_Q, predicted_Q and, where stated, std_Q."""
    values: dict[str, float] = {}
    for quantity in ("latency", "power"):
        if f"predicted_{quantity}" in found:
            ratio = found[f"predicted_{quantity}"] / found[f"measured_{quantity}"]
            values |= {quantity: float(100 * (ratio - 1).abs().mean()), f"{quantity}_bias": float(100 * (ratio - 1).mean())}
            if f"std_{quantity}" in found:
                inside = np.abs(np.log(ratio)) < NORMAL_90 * found[f"std_{quantity}"]
                values[f"{quantity}_inside"] = float(100 * inside[found[f"std_{quantity}"].notna()].mean())
    error = (found["predicted_latency"] / found["measured_latency"] - 1) if "predicted_latency" in found else None
    worst = (
        "" if error is None or "what" not in found else f"{found['what'][error.abs().idxmax()]} {100 * error[error.abs().idxmax()]:+.0f} %"
    )
    return Score(section=section, way=way, rows=len(found), goal=GOALS.get(goal or section, (None, None)), worst=worst, **values)


def halves(data: Path, bundles: Path) -> Iterator[Score]:
    """Half of the H100's runs from the other half, and by length."""
    case = read_board(data, "h100")
    parts = half_outcomes(case, 4)
    for way, found in {"own fit": mean_score(parts), **by_length(parts)}.items():
        inside = {f"{quantity}_inside": 100 * found[f"{quantity}_coverage"] for quantity in ("latency", "power")}
        errors = {quantity: found[quantity] for quantity in ("latency", "power")}
        yield Score(section="halves", way=way, goal=GOALS["halves"], **errors, **inside)


def specification(data: Path, bundles: Path) -> Iterator[Score]:
    """The A100's fit on the H100's longer runs, with and without the rules for power."""
    a100, h100 = (read_board(data, name) for name in ("a100", "h100"))
    for way, rules in (("with the rules for power", nullcontext()), ("without", without("the rules, rest power known"))):
        with rules:
            found = score(way, fitted(a100), h100)
        errors = {"latency": found.latency, "latency_bias": found.latency_bias}
        errors |= {"power": found.forecast_power, "power_bias": found.forecast_power_bias, "power_inside": found.inside}
        yield Score(section="specification", way=way, rows=found.rows, goal=GOALS["specification"], **errors)


def named_bundles(gpu: str, folder: Path) -> Iterator[tuple[str, Bundle]]:
    """Bundles that forecast a board, those that are there."""
    for name in OWN[gpu]:
        path = folder / f"{name}.json"
        if path.is_file():
            yield name, load_bundle(path)
        else:
            click.echo(f"skipped: no bundle {path}", err=True)


@cache
def traced(request: str) -> Workload:
    """The workload of a trace, given as JSON of its fields.  Raises EstimatorError without PyTorch."""
    from estimator.tracing.torch_trace import trace_workload

    return trace_workload(TraceRequest(**json.loads(request)))


UNETS = {"sd15": 26, "sdxl": 25}
"""UNets of one batch of images for 25 steps.  The scheduler of Stable Diffusion 1.5, PNDM, evaluates one step twice (diffusers,
scheduling_pndm.py, set_timesteps; issue 1106), that of XL, Euler's method, does not.  The copy of 1.5 is assumed to have kept its own."""


def pipeline(model: str, batch: int, data: Path) -> list[tuple[Workload, int]]:
    """What one batch of images runs, and how often: guidance doubles the UNet's batch; the decoder of XL runs in fp32 with TF32.

    PyTorch was 2.3 or 2.4, whose attention is FlashAttention-2 on every board.
    """
    own, texts = f"{ROOT}/benchmarks/networks/diffusion.py", f"{data}/independent/diffusion.py"
    name, vae, clips = ("sdxl", "tf32", ("clip_l", "clip_g")) if "xl" in model else ("sd15", "fp16", ("clip_l",))
    steps = UNETS[name]
    parts = [(f"{own}:{name}_unet", 2 * batch, "fp16", steps), (f"{own}:{name}_vae", batch, vae, 1)]
    parts += [(f"{own}:{name}_step", batch, "fp16", steps)] * (name == "sd15")
    parts += [(f"{texts}:{clip}", batch, "fp16", 2) for clip in clips]
    requests = ({"model": model, "batch": size, "precision": precision} for model, size, precision, _ in parts)
    return [(_with_flash(traced(json.dumps(request))), part[3]) for request, part in zip(requests, parts, strict=True)]


def _with_flash(workload: Workload) -> Workload:
    operators = (replace(one, library=FLASH_ATTENTION) if one.family == "attention" else one for one in workload.operators)
    return replace(workload, operators=tuple(operators))


def diffusion(data: Path, bundles: Path) -> Iterator[Score]:
    """Images of ML.ENERGY."""
    rows = pd.read_csv(data / "independent" / "mlenergy_v2_diffusion.csv")
    for gpu, own in rows.groupby("gpu"):
        spec = load_gpu(str(gpu))

        def of_host(bundle: Bundle, launch_s: float | None, own: pd.DataFrame = own, spec: GpuSpec = spec) -> pd.DataFrame:
            rows = list(own.itertuples())
            found = [asked(bundle, spec, pipeline(row.model, row.batch, data), row.power_limit_w, launch_s) for row in rows]
            measured = {"measured_latency": own["latency_s"].array, "measured_power": own["power_w"].array}
            return pd.DataFrame(found).assign(**measured, what=[f"{row.model.rpartition('/')[2]} {row.batch}" for row in rows])

        busy = (own["power_w"] > 0.9 * own["power_limit_w"]).array
        for way, bundle in named_bundles(str(gpu), bundles):
            found = of_host(bundle, None)
            yield scored(f"diffusion {gpu}", way, found)
            yield scored(f"diffusion {gpu}/busy", way, found[busy], f"diffusion {gpu}")
            first, launch_s = found.iloc[0], host_of(bundle, spec).launch_s
            paced = of_host(bundle, float(launch_s * first["measured_latency"] / first["predicted_latency"])).iloc[1:]
            yield scored(f"diffusion {gpu}", f"{way}, host's pace from batch 1", paced)


def asked(
    bundle: Bundle, gpu: GpuSpec, parts: Iterable[tuple[Workload, int]], limit_w: float, launch_s: float | None = None
) -> dict[str, float]:
    """Time, power and their deviations of workloads in turn, at the highest clock within a limit; errors of the parts are common."""
    at = {"gpu": gpu, "sm_clock_mhz": gpu.sm_clock_limit_mhz, "power_cap_w": limit_w, "host_launch_s": launch_s}
    found = [(estimate(one, bundle, **at)[0], count) for one, count in parts]
    seconds, joules = (sum(count * getattr(one, name) for one, count in found) for name in ("latency_s", "energy_j"))
    main = max(found, key=lambda pair: pair[1] * pair[0].latency_s)[0]
    stated = {"std_latency": main.latency_s_std_elsewhere / main.latency_s, "std_power": main.power_w_std_elsewhere / main.power_w}
    return {"predicted_latency": seconds, "predicted_power": joules / seconds, **stated}


def training(network_name: str, batch: int, precision: str) -> Workload:
    """A training step."""
    if network_name == "resnet50":
        fields = {"model": "resnet-101", "batch": batch, "settings": {"depths": [3, 4, 6, 3]}}
    else:
        sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
        fields = {"model": "bert-large", "batch": batch, "sequence": 384, "settings": sizes}
    return traced(json.dumps({**fields, "phase": "train", "precision": precision}))


def zeus(data: Path, bundles: Path) -> Iterator[Score]:
    """Training under limits: ratios of times need no knowledge of the input pipeline."""
    v100 = pd.read_csv(data / "independent" / "zeus_power_limit_training.csv").assign(gpu="v100-pcie-32gb", precision="fp32")
    every = pd.concat([v100, pd.read_csv(ROOT / "benchmarks" / "published" / "training.csv")])
    every = every[every["dataset"].isin(["imagenet", "squad"]) & (every["batch"] >= 32)]

    def slowed(rows: pd.DataFrame, bundle: Bundle) -> pd.DataFrame:
        gpu, limit = load_gpu(rows["gpu"].iloc[0]), rows["power_limit_w"].max()
        free = rows[rows["power_limit_w"] == limit].set_index(["network", "batch"])["time_per_epoch_s"]
        found = []
        for row in rows[rows["power_limit_w"] < limit].itertuples():
            work = [(training(row.network, row.batch, row.precision), 1)]
            slow, fast = (asked(bundle, gpu, work, float(watt)) for watt in (row.power_limit_w, limit))
            slow["predicted_latency"] /= fast["predicted_latency"]
            measured = {"measured_latency": row.time_per_epoch_s / free[row.network, row.batch], "measured_power": row.power_w}
            found.append({**slow, **measured, "what": f"{row.network} {row.batch} {row.power_limit_w:g} W"})
        return pd.DataFrame(found).drop(columns=["std_latency", "std_power"])

    for gpu, rows in every.groupby("gpu"):
        for way, bundle in named_bundles(str(gpu), bundles):
            yield scored("zeus", f"{gpu} from {way}", slowed(rows, bundle))
    with without("the rules, rest power known"):
        yield scored("zeus", f"{gpu} from {way}, without the rules for power", slowed(rows, bundle))


CLASSES_S = (0.0, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, np.inf)
"""Edges of the classes of kernel times [s]."""


def vidur(data: Path, bundles: Path) -> Iterator[Score]:
    """Products of another laboratory."""
    for gpu in ("a100-sxm-80gb", "h100-sxm"):
        rows = read_selection([data / "independent" / "vidur_gemm.csv"], gpu).kernels
        assert rows is not None
        for way, bundle in named_bundles(gpu, bundles):
            if way != gpu:
                continue
            found = predict_kernel_rows(bundle, rows).drop(columns=["predicted_power"])
            yield scored(f"vidur {gpu}", way, found)
            for low, high in pairwise(CLASSES_S):
                part = found[found["measured_latency"].between(low, high, inclusive="left")]
                yield replace(scored(f"vidur {gpu}", f"{way}, {low:g} to {high:g} s", part), goal=(None, None), worst="")


REST_W = {"h100-sxm": 120.0, "h200-sxm": 121.0, "b200-sxm": 191.0, "l40s": 101.0, "a10": 37.0, "l4": 27.5, "t4": 25.5, "a40": 74.0}
"""Boards awake without work [W]: means of tables of nvidia-smi in public repositories; L40S: arXiv:2605.23918."""

THROTTLED = {"t4": ("a10-eager", 4096.0, 24e12)}
"""Boards whose limit holds their clock far down, the bundle that forecasts them, the edge of a cubic fp16 product, and its rate [flop/s]:
forums.developer.nvidia.com/t/264462, mean of 100 launches."""

LIMITED = {"gb200": "b200-sxm", "h200-sxm": "h200-sxm"}
"""Boards with published power of kernels, each with the bundle that forecasts it.  No bundle was fitted to these rows."""


def cube(edge: float, precision: str) -> Workload:
    """A product of two square matrices."""
    product = make_operator("gemm", "linear", precision, batch=1.0, m=edge, n=edge, k=edge)
    return Workload(name=f"{edge:.0f}", model_family="product", operators=(product,), counts=(1.0,))


def energy(data: Path, bundles: Path) -> Iterator[Score]:
    """Rest power by rule; power of kernels, and times of those at the limit, whose energy sets their clock."""
    source = load_bundle(bundles / "a100-pcie-40gb-eager.json")
    for gpu, watt in REST_W.items():
        spec = replace(load_gpu(gpu), idle_w=None)
        rest: Array = board_tables(source, spec).rest_w(np.array([spec.sm_clock_limit_mhz]))
        yield scored("energy", f"rest power of {gpu} by rule", pd.DataFrame({"predicted_power": rest, "measured_power": [watt]}))
    for gpu, (name, edge, rate) in THROTTLED.items():
        spec = load_gpu(gpu)
        seconds = asked(load_bundle(bundles / f"{name}.json"), spec, [(cube(edge, "fp16"), 1)], spec.power_limit_w)["predicted_latency"]
        values = {"predicted_latency": [seconds], "measured_latency": [2.0 * edge**3 / rate]}
        yield scored("energy", f"time of {edge:.0f}³ on {gpu} from {name}", pd.DataFrame(values))
    for gpu, name in LIMITED.items():
        rows = read_selection([data / "aiconfigurator" / "power.csv"], gpu).kernels
        assert rows is not None
        found = predict_kernel_rows(load_bundle(bundles / f"{name}.json"), rows)
        for operator, part in found[~rows.at_limit].dropna(subset="measured_power").groupby("operator"):
            yield scored("energy", f"power on {gpu} from {name}, {operator}", part.drop(columns=["predicted_latency"]))
        for (family, precision), part in found[rows.at_limit].drop(columns=["predicted_power"]).groupby(["family", "precision"]):
            yield scored("energy", f"time at the limit on {gpu} from {name}, {family} {precision}", part)


SECTIONS = {one.__name__: one for one in (halves, specification, diffusion, zeus, vidur, energy)}


def scores(names: Iterable[str], data: Path, bundles: Path) -> Iterator[Mapping[str, object]]:
    """The scores of sections; one that lacks PyTorch or data is skipped with the reason."""
    for name in names:
        try:
            for found in SECTIONS[name](data, bundles):
                values = {key: value for key, value in asdict(found).items() if value == value and value not in ("", 0, (None, None))}
                yield values
        except (EstimatorError, OSError) as error:
            click.echo(f"skipped: {name}: {error}", err=True)


@click.command()
@click.argument("sections", nargs=-1, type=click.Choice(list(SECTIONS)))
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--bundles", type=click.Path(path_type=Path), default=ROOT / "bundles", show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(sections: tuple[str, ...], data: Path, bundles: Path, as_json: bool) -> None:
    """Print the errors of SECTIONS, or of all."""
    if published(data / "independent"):
        show(scores(sections or SECTIONS, data, bundles), as_json)


if __name__ == "__main__":
    main()
