"""All figures that users see, from the commands alone: the check of every change that must not affect them.

    python benchmarks/figures.py [--data ../shared/data] [--only SECTION] [--sensors 200] [--out FIGURES.json] [--against OLD.json]

All figures come from `collect`, `fit` and `estimate` as users call them, so the check is independent of internals.  It prints one line per
figure; `--against` prints those that differ from an earlier run and ends with exit status 1 if one is worse by more than its tolerance.

predictions  latency and power of both shipped bundles on all workloads at three clocks [geometric mean; --out holds every value]
models       errors of whole models held out: halves, families, other clocks [%], and the share inside stated intervals
kernels      errors of kernel tables held out: a fifth of the shapes [%], and the share inside
campaign     a simulated campaign's bundle on another simulated card of the same kind [%] (simulated)
recordings   results from real recordings of power sensors
sensors      sensors of a simulation that shares no code with the product (simulated)
speed        processor time of estimates over that of parsing the same workload as JSON
"""

import csv
import hashlib
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import click
import numpy as np

Figures = dict[str, float | str | None]
Row = dict[str, str]

ROOT = Path(__file__).resolve().parents[1]
BUNDLES = {"a100-pcie-40gb-eager": (510, 900, 1410), "a10-eager": (600, 900, 1695)}
TOLERANCE_POINTS = 0.3  # held-out errors [percentage points], the limit for a rebuild of the internals
TOLERANCE_COVERAGE = 3.0  # shares inside [points]: about one standard error of a hundred runs
TOLERANCE_LN = 1e-9  # predictions: equal up to rounding
SAMPLE_ROWS = 1500  # rows of a kernel table that are fitted, so that all tables take minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Folders of published data and of files of this run."""

    data: Path
    scratch: Path
    sensors: int

    def file(self, name: str) -> Path:
        """A file of this run."""
        return self.scratch / name


def command(name: str, *arguments: str | Path) -> object:
    """Run a command of the product and read its JSON; RuntimeError with its output if it failed."""
    package = {"collect": "collector", "fit": "fitter", "estimate": "estimator"}[name]
    code = f"from {package}.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, check=False)
    if run.returncode not in {0, 3}:
        raise RuntimeError(f"{name} {' '.join(map(str, arguments))}: {run.stderr.strip()[-600:]}")
    return json.loads(run.stdout) if "--json" in arguments else run.stdout


def side_by_side(jobs: Iterable[Callable[[], Figures]]) -> Figures:
    """Figures of independent jobs, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        return {name: value for part in pool.map(lambda job: job(), jobs) for name, value in part.items()}


# Predictions -------------------------------------------------------------------------------------------------------------------------


def predictions(place: Place) -> Figures:
    """Predictions of every shipped bundle for every workload at three clocks."""
    files = [*sorted((place.data / "energaizer/workloads").glob("*.json")), *sorted((ROOT / "examples").glob("*.json"))]
    found: Figures = {}
    for bundle, clocks in BUNDLES.items():
        points = cast(list[Row], command("estimate", *files, "--bundle", bundle, "--freqs", ",".join(map(str, clocks)), "--json"))
        for key in ("latency_s", "power_w", "latency_s_std", "power_w_std"):
            values = {f"{p['workload']} {p['asked_clock_mhz']}": float(p[key]) for p in points}
            found[f"{bundle} {key}, mean of {len(values)}"] = math.exp(float(np.mean(np.log(list(values.values())))))
            found |= {f"= {bundle} {key} {name}": value for name, value in values.items()}
    return found


# Held-out errors ---------------------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Row]:
    """Rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows as CSV, all of one laboratory."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0], "collection"])
        writer.writeheader()
        writer.writerows(row | {"collection": "published"} for row in rows)
    return path


def bucket(text: str, count: int, draw: int = 0) -> int:
    """A number below `count` for a text and a draw, the same on every machine."""
    return int(hashlib.sha256(f"{draw} {text}".encode()).hexdigest(), 16) % count


def held_out(place: Place, label: str, train: Sequence[Row], test: Sequence[Row]) -> Figures:
    """Fit rows, check others; errors by family and operator [%] with the share inside stated 90 % intervals [%]."""
    stem = re.sub(r"\W+", "-", label)
    bundle = place.file(f"{stem}.json")
    command("fit", write_rows(place.file(f"{stem}-train.csv"), train), "-o", bundle, "--seed", "0")
    checked = cast(
        dict[str, list[dict[str, object]]], command("fit", "check", bundle, write_rows(place.file(f"{stem}-test.csv"), test), "--json")
    )
    found: Figures = {}
    for entry in checked["errors"]:
        kind = "" if entry["operator"] == "model" else f" {entry['operator']} {entry['precision']}"
        for quantity in ("latency", "power"):
            errors = cast(dict[str, float] | None, entry[quantity])
            if errors and errors.get("n"):
                found[f"{label}{kind} {quantity} error %"] = errors["mape"]
                if errors.get("coverage") is not None:
                    found[f"{label}{kind} {quantity} inside %"] = 100.0 * errors["coverage"]
    return found


def mean_of(label: str, parts: Sequence[Figures]) -> Figures:
    """Mean of the same figures of several divisions."""
    names = [re.sub(r" #\d+", "", name) for name in parts[0]]
    columns = np.array([[cast(float, value) for value in part.values()] for part in parts])
    return {name.replace("half", label): float(value) for name, value in zip(names, columns.mean(axis=0), strict=True)}


def models(place: Place) -> Figures:
    """Whole models: halves both ways, families, other clocks, another board by its specification."""
    folder = place.data / "energaizer"
    tables = {path.stem: [row | {"workload": str(folder / row["workload"])} for row in read_rows(path)] for path in folder.glob("*.csv")}
    jobs: list[Callable[[], Figures]] = []
    for board, table in (("A100", "a100_900mhz"), ("A10", "a10_900mhz"), ("H100", "h100_sxm")):
        rows = tables[table]
        jobs.append(lambda board=board, rows=rows: halves(place, board, rows))  # type: ignore[misc]
        names = [Path(row["workload"]).name.split("model")[0].split("_")[0] for row in rows]
        for family in sorted(set(names)):
            train = [row for row, name in zip(rows, names, strict=True) if name != family]
            test = [row for row, name in zip(rows, names, strict=True) if name == family]
            jobs.append(lambda a=f"{board} without {family}", b=train, c=test: held_out(place, a, b, c))  # type: ignore[misc]
    other = [row for row in tables["a100_clocks"] if row["sm_clock_mhz"] != "900"]
    jobs.append(lambda: held_out(place, "A100 at other clocks", tables["a100_900mhz"], other))
    return side_by_side(jobs)


def halves(place: Place, board: str, rows: Sequence[Row]) -> Figures:
    """Half of the workloads → the other half, both ways, two divisions."""
    parts = []
    for number in range(4):
        side = [bucket(row["workload"], 2, number // 2) == number % 2 for row in rows]
        train = [row for row, chosen in zip(rows, side, strict=True) if chosen]
        test = [row for row, chosen in zip(rows, side, strict=True) if not chosen]
        parts.append(held_out(place, f"{board} half #{number}", train, test))
    return mean_of("half → half", parts)


def kernels(place: Place) -> Figures:
    """Kernel tables by GPU: a fifth of the weight shapes or head counts left out."""
    jobs: list[Callable[[], Figures]] = []
    for folder, names in (
        ("aiconfigurator", ("gemm_latency", "attention_latency")),
        ("neusight", ("bmm_train", "linear_train", "vector_train")),
    ):
        for name in names:
            rows = read_rows(place.data / folder / f"{name}.csv")
            for gpu in sorted({row["gpu"] for row in rows}):
                chosen = [row for row in rows if row["gpu"] == gpu and row.get("reason", "") in {"", "OK"}]
                step = max(1, len(chosen) // SAMPLE_ROWS)
                jobs.append(lambda a=f"{gpu} {name}", b=chosen[::step]: shapes_left_out(place, a, b))  # type: ignore[misc]
    return side_by_side(jobs)


def shapes_left_out(place: Place, label: str, rows: Sequence[Row]) -> Figures:
    """A fifth of the shapes → predicted from the others."""
    shape = ("n", "k", "heads", "kv_heads", "dim")
    fifth = [bucket(" ".join(row.get(name) or "" for name in shape), 5) == 0 for row in rows]
    train = [row for row, out in zip(rows, fifth, strict=True) if not out]
    return held_out(place, label, train, [row for row, out in zip(rows, fifth, strict=True) if out])


def campaign(place: Place) -> Figures:
    """A campaign on a simulated A100 and its bundle on another simulated card; errors [%] (simulated)."""
    common = ("--gpu", "sim:a100-pcie-40gb", "--freqs", "510,900,1410", "--pmd", "sim")
    for seed in (1, 2):
        command("collect", *common, "--seed", str(seed), "--out", place.file(f"campaign-{seed}.parquet"))
    command("fit", place.file("campaign-1.parquet"), "-o", place.file("campaign.json"), "--seed", "1")
    found: Figures = {}
    for seed, label in ((1, "same card"), (2, "another card")):
        checked = cast(
            dict[str, dict[str, dict[str, dict[str, float]]]],
            command("fit", "check", place.file("campaign.json"), place.file(f"campaign-{seed}.parquet"), "--json"),
        )
        for kind, entry in checked["summary"].items():
            for quantity in ("latency", "power"):
                if entry.get(quantity):
                    found[f"{label} {kind} {quantity} error %"] = entry[quantity]["mape"]
    return found


# Sensors -----------------------------------------------------------------------------------------------------------------------------

SENSOR_KEYS = ("averaging", "update_period_s", "window_s", "window_std_s", "delay_s", "gain", "offset_w", "n_updates")


def recordings(place: Place) -> Figures:
    """Sensors of real boards, from logs with a meter, with only load stamps, and alone."""
    jobs = []
    for run in ("a100_square_wave", "rtx3090_step"):
        folder = place.data / "sensors" / run
        fields = read_header(folder / "gpudata.csv")
        for field in fields:
            for given, extra in (("meter", ("--reference", folder / "PMD_data.bin")), ("stamps", ())):
                arguments = ("--readings", folder / "gpudata.csv", "--load", folder / "timestamps.csv", "--column", field, *extra)
                jobs.append((f"{run} {field} {given}", arguments))
    jobs += [(path.stem, ("--readings", path)) for path in sorted((place.data / "sensors/logs").glob("*.csv"))]

    def one(label: str, arguments: tuple[str | Path, ...]) -> Figures:
        try:
            found = cast(dict[str, float], command("collect", "sensor", *arguments, "--json"))
        except RuntimeError as error:
            return {f"{label}: refused": str(error)[-160:]}
        return {f"{label} {key}": found[key] for key in SENSOR_KEYS}

    return side_by_side([lambda a=a, b=b: one(a, b) for a, b in jobs])  # type: ignore[misc]


def read_header(path: Path) -> list[str]:
    """Power columns of an nvidia-smi log."""
    with path.open() as file:
        names = [name.split("[")[0].strip() for name in file.readline().split(",")]
    return [name for name in names if name.startswith("power.draw")]


def sensors(place: Place) -> Figures:
    """Sensors of a simulation that shares no code with the product (simulated)."""
    program = ROOT / "benchmarks" / "foreign_sensors.py"
    if not program.is_file():
        return {"skipped": "benchmarks/foreign_sensors.py is not there"}
    arguments = [sys.executable, "-m", "benchmarks.foreign_sensors", "--count", str(place.sensors), "--json"]
    run = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=True)
    return flat(json.loads(run.stdout))


def flat(value: object, name: str = "") -> Figures:
    """A JSON document as one level of figures."""
    if isinstance(value, dict):
        return {key: one for inner, part in value.items() for key, one in flat(part, f"{name} {inner}".strip()).items()}
    if isinstance(value, list):
        return {key: one for number, part in enumerate(value) for key, one in flat(part, f"{name} {number}".strip()).items()}
    return {name: cast(float | str | None, value)}


# Speed -------------------------------------------------------------------------------------------------------------------------------


def speed(place: Place) -> Figures:
    """Processor time of estimates over that of parsing the same file, medians of alternating pairs."""
    from estimator import estimate, load_bundle, read_workload

    path = max((place.data / "energaizer/workloads").glob("*.json"), key=lambda p: p.stat().st_size)
    bundle = load_bundle("a100-pcie-40gb-eager")
    text = path.read_text()
    workload = read_workload(path)
    cases: dict[str, Callable[[], object]] = {
        "read": lambda: read_workload(path),
        "1 clock": lambda: estimate(workload, bundle, sm_clock_mhz=900.0),
    }
    found: Figures = {}
    for name, call in cases.items():
        call()
        ratios = [processor_s(call) / processor_s(lambda: json.loads(text)) for _ in range(40)]
        found[f"{name}, over parsing {len(text)} bytes"] = float(np.median(ratios))
    return found


def processor_s(call: Callable[[], object]) -> float:
    """Processor time of a call [s]."""
    before = time.process_time()
    call()
    return time.process_time() - before


# All -----------------------------------------------------------------------------------------------------------------------------------

SECTIONS: dict[str, Callable[[Place], Figures]] = {
    "predictions": predictions,
    "models": models,
    "kernels": kernels,
    "campaign": campaign,
    "recordings": recordings,
    "sensors": sensors,
    "speed": speed,
}


def difference(section: str, name: str, old: float | str | None, new: float | str | None) -> tuple[str, bool] | None:
    """Difference of a figure, and whether it is worse by more than its tolerance; None without a difference."""
    if old == new:
        return None
    if not isinstance(old, float | int) or not isinstance(new, float | int):
        return f"{old} → {new}", True
    text = f"{old:.6g} → {new:.6g}"
    if section == "predictions":
        apart = abs(math.log(new / old)) if old > 0 and new > 0 else math.inf
        return (text, True) if apart > TOLERANCE_LN else None
    if name.endswith("error %"):
        return text, new - old > TOLERANCE_POINTS
    if name.endswith("inside %"):
        return text, new < old - TOLERANCE_COVERAGE
    return text, section == "recordings" and abs(new - old) > 0.02 * abs(old)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=ROOT.parent / "shared" / "data", show_default=True)
@click.option("--only", "chosen", multiple=True, type=click.Choice(list(SECTIONS)), help="Only this section; may be repeated.")
@click.option("--sensors", "count", default=200, show_default=True, help="Simulated sensors.")
@click.option("--out", type=click.Path(path_type=Path), help="Write all figures as JSON.")
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="Figures of an earlier run.")
def main(data: Path, chosen: tuple[str, ...], count: int, out: Path | None, against: Path | None) -> None:
    """Print all figures; with --against only those that differ."""
    if not (data / "energaizer").is_dir():
        raise click.ClickException(f"the published data are not at {data}; --data names another folder")
    old: dict[str, Figures] = json.loads(against.read_text()) if against else {}
    found: dict[str, Figures] = {}
    worse = 0
    for section in chosen or SECTIONS:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found[section] = SECTIONS[section](Place(data=data, scratch=Path(folder), sensors=count))
        click.echo(f"== {section} ({time.monotonic() - started:.0f} s)")
        if against:
            earlier = old.get(section, {})
            for name in sorted(earlier.keys() | found[section].keys()):
                apart = difference(section, name, earlier.get(name), found[section].get(name))
                if apart:
                    worse += apart[1]
                    click.echo(f"{'WORSE ' if apart[1] else '      '}{name}: {apart[0]}")
        else:
            for name, value in found[section].items():
                if not name.startswith("="):
                    click.echo(f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}")
    if out:
        out.write_text(json.dumps(found, indent=1))
    if worse:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
