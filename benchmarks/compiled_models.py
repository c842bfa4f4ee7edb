"""Speed-ups by torch.compile: forecast against those that Transformers' documentation publishes (default mode, PyTorch 2.0.1, fp32).

    build/torch/bin/python benchmarks/compiled_models.py [--bundle a100-pcie-40gb-eager] [--vision] [--language] [--json]

Needs PyTorch (`make test-torch` installs it).  A line for every GPU and model: published and forecast speed-ups at 1, 4 and 16 images, and
our eager time over the published one by the bundle that `estimate --gpu` takes for fp32 (1 image waits for the host); then the mean and the
largest absolute error of each GPU's speed-ups [%], and the mean one of its eager times from 4 images on.  Goal: within 25 %.  The usual
settings of PyTorch: convolutions in tf32 where the GPU has it, products in fp32.

--vision instead: timm's published inferences and eager training steps ("train", PyTorch 1.12) of models that Transformers has with as many
weights (benchmarks/published: vision.csv, configurations in vision.json), in the lines of `published.py` for each GPU, runtime and layout,
convolutional and with attention.  One minute.  timm's mixed precision (fp16) casts weights at each forward pass, has norms in fp32,
and keeps sums with what they return in fp32; its attention is fused in inference, MobileViT's and PVT's of Transformers is not.

--language: published eager language models in the same lines (benchmarks/published/language.csv), times of prefills and of tokens, energy
of tokens.  Half a minute.
"""

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import click
import numpy as np
from published import FOLDER, Compared, near, rows_of, scored
from showing import show

from estimator import estimate, load_bundle, load_gpu
from estimator.tracing.models import RUNTIMES, TraceRequest
from estimator.tracing.torch_trace import trace_workload
from estimator.uncertainty.nearest import bundle_for
from estimator.vocabulary.quantities import NORMAL_90
from estimator.vocabulary.workload import Workload

IMAGES = (1, 4, 16)

MODELS: dict[str, dict[str, object]] = {
    "ViT": {"model_type": "vit", "architectures": ["ViTForImageClassification"]},
    "BeiT": {"model_type": "beit", "architectures": ["BeitForImageClassification"]},
    "ConvNeXT": {
        "model_type": "convnext",
        "architectures": ["ConvNextForImageClassification"],
        "depths": [3, 3, 27, 3],
        "hidden_sizes": [192, 384, 768, 1536],
    },
    "ResNet": {"model_type": "resnet", "architectures": ["ResNetForImageClassification"]},
}
"""Configurations by the names of the publication: ViT-B/16, BEiT-B/16, ConvNeXt-L and ResNet-50, where nothing is stated the defaults."""

ATTENTIVE = ("vit", "beit", "swin", "mobilevit", "pvt")

PUBLISHED_MS: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "a100-pcie-40gb": {
        "ViT": ((7.584, 9.325), (14.499, 14.832), (40.01, 40.944)),
        "BeiT": ((8.448, 11.282), (13.048, 13.205), (41.048, 41.854)),
        "ConvNeXT": ((10.208, 10.41), (21.631, 22.94), (75.561, 82.258)),
        "ResNet": ((4.124, 6.531), (4.268, 6.657), (5.024, 7.018)),
    },
    "v100-pcie-32gb": {
        "ViT": ((6.0, 10.495), (14.501, 15.181), (51.633, 52.209)),
        "BeiT": ((7.234, 11.347), (14.753, 15.171), (53.581, 53.938)),
        "ConvNeXT": ((10.412, 11.623), (27.085, 29.574), (100.771, 109.682)),
        "ResNet": ((3.82, 6.484), (4.731, 6.109), (12.089, 14.857)),
    },
    "t4": {
        "ViT": ((15.786, 16.52), (43.626, 43.653), (160.907, 163.914)),
        "BeiT": ((15.71, 16.464), (51.354, 52.007), (187.976, 188.978)),
        "ConvNeXT": ((30.845, 32.932), (105.58, 119.259)),
        "ResNet": ((4.321, 6.031), (11.388, 13.039)),
    },
}
"""Time with and without torch.compile at IMAGES [ms] by GPU and model.
Source: Transformers, "Optimize inference using torch.compile()" (datasets stevhliu/compile-benchmarks, Apache-2.0)."""


def speed_ups(bundle_name: str) -> Iterator[dict[str, object]]:
    """Published and forecast speed-ups, and the errors of each GPU."""
    bundle = load_bundle(bundle_name)
    traces = {}
    with tempfile.TemporaryDirectory() as folder:
        for model, config in MODELS.items():
            path = Path(folder) / model / "config.json"
            path.parent.mkdir()
            path.write_text(json.dumps(config))
            for images, runtime in product(IMAGES, RUNTIMES):
                request = TraceRequest(model=str(path), batch=images, precision="fp32", runtime=runtime)
                traces[model, images, runtime] = trace_workload(request)
    for gpu, published in PUBLISHED_MS.items():
        errors, busy, (own, other) = [], [], bundle_for(gpu, ("fp32",))
        for model, times in published.items():
            measured = [without / compiled for compiled, without in times]
            forecast = []
            ratios = [
                1e3 * estimate(traces[model, images, "eager"], own, gpu=other)[0].latency_s / without
                for images, (_, without) in zip(IMAGES, times, strict=False)
            ]
            busy += [100.0 * (ratio - 1.0) for ratio in ratios[1:]]
            for images in IMAGES[: len(times)]:
                found = (estimate(traces[model, images, form], bundle, gpu=load_gpu(gpu)) for form in RUNTIMES)
                (eager,), (merged,) = found
                forecast.append(eager.latency_s / merged.latency_s)
            errors += [100.0 * (ours / theirs - 1.0) for ours, theirs in zip(forecast, measured, strict=True)]
            yield {
                "gpu": gpu, "model": model, "published": measured, "forecast": forecast, "error %": errors[-len(times) :], "eager": ratios,
            }  # fmt: skip
        yield {
            "gpu": gpu, "mean |error| %": float(np.mean(np.abs(errors))), "largest %": float(np.max(np.abs(errors))), "goal %": 25.0,
            "mean |error| of eager times %": float(np.mean(np.abs(busy))),
        }  # fmt: skip


def inferences() -> Iterator[dict[str, object]]:
    """The lines of timm's inferences."""
    configs, groups = json.loads((FOLDER / "vision.json").read_text()), defaultdict(list)

    @cache
    def traced(model: str, layout: str, precision: str, runtime: str, image: str, batch: str) -> Workload:
        path = Path(folder) / model / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**configs[model], "num_labels": 1000}))
        asked = {"precision": precision, "image_size": int(image), "batch": int(batch), "channels_last": layout == "nhwc"}
        asked |= {"phase": "train", "attention": "eager"} if runtime == "train" else {"runtime": runtime, "attention": "flash"}
        return trace_workload(TraceRequest(model=str(path), **asked))

    with tempfile.TemporaryDirectory() as folder:
        for row in rows_of("vision"):
            workload = traced(*(row[name] for name in ("model", "layout", "precision", "runtime", "image", "batch")))
            bundle, gpu = near(row["gpu"], (row["precision"],))
            cap = float(row["power_cap_w"]) if row["power_cap_w"] else None
            found = estimate(workload, bundle, gpu=gpu, power_cap_w=cap)[0]
            ratio, deviation = (
                found.latency_s * float(row["images_per_s"]) / float(row["batch"]),
                found.latency_s_std_elsewhere / found.latency_s,
            )
            kind = "attention" if row["model"].startswith(ATTENTIVE) else "convolution"
            group = " ".join((row["gpu"], row["runtime"], row["layout"], kind))
            groups[group].append(Compared(group, row["model"], ratio, abs(math.log(ratio)) < NORMAL_90 * deviation))
    yield from (scored(group, found) for group, found in groups.items())


SLOW_CAT = 2.0
"""Time of torch.cat in 16 bits until PyTorch 2.7 over that of later versions: as long as in fp32 (pytorch pull request 150233)."""


def language() -> Iterator[dict[str, object]]:
    """The lines of eager language models."""
    groups = defaultdict(list)
    for row in rows_of("language"):
        sizes = {name: int(row[name]) for name in ("batch", "sequence")}
        named = {name: row[name] for name in ("model", "phase", "precision", "attention")}
        workload = trace_workload(TraceRequest(**named, **sizes, runtime="eager"))
        if "PyTorch 2.1" in row["source"]:
            pairs = zip(workload.operators, workload.counts, strict=True)
            workload = replace(workload, counts=tuple(count * SLOW_CAT ** (one.operator == "cat") for one, count in pairs))
        bundle, gpu = near(row["gpu"], (row["precision"],))
        found = estimate(workload, bundle, gpu=gpu, power_cap_w=float(row["power_cap_w"]) if row["power_cap_w"] else None)[0]
        ours, deviation = 1e3 * found.latency_s, found.latency_s_std_elsewhere / found.latency_s
        if row["unit"] == "J":
            ours, deviation = found.energy_j, found.energy_j_std_elsewhere / found.energy_j
        group = " ".join((row["gpu"], row["phase"], row["attention"], row["unit"], "from 16 on" if sizes["batch"] >= 16 else "to 8"))
        ratio = ours / float(row["value"])
        what = f"{row['model']} {sizes['batch']}"
        groups[group].append(Compared(group, what, ratio, abs(math.log(ratio)) < NORMAL_90 * deviation))
    yield from (scored(group, found) for group, found in groups.items())


@click.command()
@click.option("--bundle", "bundle_name", metavar="NAME|FILE", default="a100-pcie-40gb-eager", show_default=True)
@click.option("--vision", is_flag=True, help="timm's inferences instead.")
@click.option("--language", "llm", is_flag=True, help="Eager language models instead.")
@click.option("--json", "as_json", is_flag=True)
def main(bundle_name: str, vision: bool, llm: bool, as_json: bool) -> None:
    """Print speed-ups beside the published ones."""
    if find_spec("torch") is None:
        click.echo("skipped: PyTorch is not installed; `make test-torch` installs it in build/torch", err=True)
        return
    show(inferences() if vision else language() if llm else speed_ups(bundle_name), as_json)


if __name__ == "__main__":
    main()
