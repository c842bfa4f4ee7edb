"""Judge `collect sensor` on simulated sensors of a world that shares no code with it: answers and stated errors.

    python benchmarks/foreign_sensors.py [--count 24] [--seed 0] [--of meter,load] [--rows ROWS.json] [--json]

`tests/sensor_world.py` draws boards, sensors and recordings; the command reads their files in this process and its
JSON is judged, so nothing here knows how an answer is found.  For recordings with a meter and with load stamps alone:
how many periods lie within 0.1 ms, how many kernels are right, wrong and left open, how many widths lie within 1 ms
of those that are claimed rightly, and per quantity how many lie within one and within two stated errors, with the
root mean square of error over stated error (a calibrated error gives 68 %, 95 % and 1) and the median stated error.
Widths and delays count
for boxcars and low-passes that are claimed rightly: the width of a one-second mean is a convention, and without
averaging there is none.  The period is judged against the mean of the same recording, `card` against the clock's own,
with its two stated bounds in the place of one and two errors.  All figures are simulated.
"""

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.sensor_world import Truth, draw

Row = dict[str, Any]
QUANTITIES = {  # name: field of the document, of the truth, unit of the document in the truth's
    "width": ("window", "width_ms", 1e3),
    "period": ("update_period", "recorded_period_ms", 1e3),
    "delay": ("delay", "delay_ms", 1e3),
    "gain": ("gain", "gain", 1.0),
    "offset": ("offset", "offset_w", 1.0),
}


def identified(seed: int, meter: bool) -> tuple[Truth, dict[str, Any], float]:
    """Return the truth, the command's document and its seconds for one recording."""
    from collector.cli import main

    recording = draw(seed, meter)
    with TemporaryDirectory() as folder:
        paths = recording.write(Path(folder))
        asked = [part for name, path in paths.items() for part in (f"--{name}", str(path))]
        said = io.StringIO()
        start = time.process_time()
        with contextlib.redirect_stdout(said):
            main(["sensor", "--json", "--quiet", *asked])
        seconds = time.process_time() - start
    return recording.truth, json.loads(said.getvalue()), seconds


def judged(seed: int, meter: bool) -> Row:
    """Return one recording's row: the truth, what was said, and error and stated error of each quantity."""
    truth, said, seconds = identified(seed, meter)
    kernel = said["averaging"]
    row: Row = {"seed": seed, "meter": meter, "seconds": seconds, "said": kernel, "truth": vars(truth), "errors": {}}
    for name, (field, true, unit) in QUANTITIES.items():
        value, std = (
            next((said[key] for key in (f"{field}{end}{last}" for last in ("_s", "_w", "")) if key in said), None) for end in ("", "_std")
        )
        if name in ("width", "delay") and (kernel != truth.kernel or kernel in ("trailing-mean", "none")):
            continue
        if value is not None and std is not None:
            row["errors"][name] = [unit * value - getattr(truth, true), unit * std]
    if said.get("card_period_95_s") and said["update_period_s"]:
        off = 1e3 * said["update_period_s"] - truth.period_ms
        row["card"] = [off, 1e3 * said["card_period_68_s"], 1e3 * said["card_period_95_s"]]
    return row


def summary(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Return the shares and the rms of error over stated error, with a meter and with load stamps alone."""
    found: dict[str, dict[str, float]] = {}
    for name, meter in (("meter", True), ("stamps", False)):
        part = [row for row in rows if row["meter"] is meter]
        if not part:
            continue
        right = sum(row["said"] == row["truth"]["kernel"] for row in part)
        found[name] = {"recordings": len(part), "right": right, "open": sum(row["said"] == "undetermined" for row in part)}
        found[name]["wrong"] = len(part) - right - found[name]["open"]
        for quantity in QUANTITIES:
            pairs = np.array([row["errors"][quantity] for row in part if quantity in row["errors"]]).reshape(-1, 2)
            if len(pairs):
                ratio = pairs[:, 0] / np.maximum(pairs[:, 1], 1e-9)
                found[name][f"{quantity} rms of error over stated"] = float(np.sqrt(np.mean(ratio**2)))
                found[name][f"{quantity} within two stated"] = float(np.mean(np.abs(ratio) <= 2.0))
        widths = [abs(row["errors"]["width"][0]) <= 1.0 for row in part if "width" in row["errors"]]
        found[name]["widths within 1 ms"] = float(np.mean(widths)) if widths else float("nan")
    return found


def printed(rows: Iterable[Row]) -> None:
    """Print the tables of rows."""
    for meter in (True, False):
        part = [row for row in rows if row["meter"] is meter]
        if not part:
            continue
        open_ = sum(row["said"] == "undetermined" for row in part)
        right = sum(row["said"] == row["truth"]["kernel"] for row in part)
        periods = [abs(row["errors"]["period"][0]) <= 0.1 for row in part if "period" in row["errors"]]
        widths = [abs(row["errors"]["width"][0]) <= 1 for row in part if "width" in row["errors"]]
        seconds = [row["seconds"] for row in part]
        print(f"{'with a meter' if meter else 'load stamps only'}: {len(part)} recordings")
        print(f"  period within 0.1 ms {sum(periods)}/{len(part)}; kernel {right} right, {len(part) - right - open_} wrong, {open_} open")
        print(f"  width within 1 ms {sum(widths)}/{len(widths)}; seconds {np.mean(seconds):.1f}, most {max(seconds):.1f}")
        for row in part:
            if row["said"] not in ("undetermined", row["truth"]["kernel"]):
                print(f"  wrong: seed {row['seed']}: {row['said']} for {row['truth']['kernel']} {row['truth']['width_ms']:.1f} ms")
        for name in QUANTITIES:
            pairs = [(row["errors"][name], row["seed"]) for row in part if name in row["errors"]]
            if pairs:
                ratio = np.array([error / max(std, 1e-9) for (error, std), _ in pairs])
                far = ", ".join(f"{seed}: {z:+.1f}" for z, (_, seed) in zip(ratio, pairs, strict=True) if abs(z) > 2)
                shares = " ".join(f"{100 * np.mean(abs(ratio) <= k):3.0f} %" for k in (1, 2))
                typical = np.median([std for (_, std), _ in pairs])
                print(f"  {name:7}{len(ratio):4}  {shares}  rms {np.sqrt(np.mean(ratio**2)):5.2f}  stated {typical:.2g}  {far}")
        cards = [row["card"] for row in part if "card" in row]
        if cards:
            shares = " ".join(f"{100 * np.mean([abs(card[0]) <= card[k] for card in cards]):3.0f} %" for k in (1, 2))
            print(f"  card   {len(cards):4}  {shares}")


def main() -> None:
    """Judge the recordings that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--of", default="meter,load", help="meter, load, or both")
    parser.add_argument("--rows", type=Path, help="write each recording's row as JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    kinds = [kind == "meter" for kind in arguments.of.split(",")]
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    rows = [judged(seed, meter) for meter in kinds for seed in seeds]
    if arguments.json:
        print(json.dumps(summary(rows)))
    else:
        printed(rows)
    if arguments.rows is not None:
        arguments.rows.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
