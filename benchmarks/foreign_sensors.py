"""Test `collect sensor` on sensors of a simulation that shares no code with the product.  All figures are simulated.

    python -m benchmarks.foreign_sensors [--count 24] [--seed 0] [--json]

`benchmarks/sensor_world.py` draws boards, sensors and recordings; the command reads their files in this process and this
benchmark evaluates its JSON, independently of the method.  For recordings with a meter and with only load stamps it prints
the number of right, wrong and undetermined responses, the share of periods within 0.1 ms and of widths within 1 ms, and per
quantity the share within one and within two stated errors, with the root mean square of error over stated error (a calibrated
error gives 0.68, 0.95 and 1) and the median stated error.  Widths and delays count for correctly identified boxcars and
low-passes: the width of a one-second mean is a convention, and without averaging there is no width.  The period is compared
with the mean of the same recording.
"""

import contextlib
import io
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.sensor_world import draw

Row = dict[str, Any]
Figures = dict[str, dict[str, object]]
SOURCES = {True: "with a meter", False: "load stamps only"}
QUANTITIES = {  # name: field of the document, of the truth, unit of the document in the truth's
    "width": ("window", "width_ms", 1e3),
    "period": ("update_period", "recorded_period_ms", 1e3),
    "delay": ("delay", "delay_ms", 1e3),
    "gain": ("gain", "gain", 1.0),
    "offset": ("offset", "offset_w", 1.0),
}


def judged(seed: int, meter: bool, found: Mapping[str, Any], truth: Mapping[str, Any], seconds: float) -> Row:
    """Error and stated error of each quantity in a calibration's document, relative to the truth."""
    kernel, errors = found["averaging"], {}
    for name, (field, true, unit) in QUANTITIES.items():
        value, std = (
            next((found[key] for last in ("_s", "_w", "") if (key := f"{field}{end}{last}") in found), None) for end in ("", "_std")
        )
        skipped = name in ("width", "delay") and (kernel != truth["kernel"] or kernel in ("trailing-mean", "none"))
        if value is not None and std is not None and not skipped:
            errors[name] = (unit * value - truth[true], unit * std)
    return {"seed": seed, "meter": meter, "seconds": seconds, "found": kernel, "kernel": truth["kernel"], "errors": errors}


def by_command(seed: int, meter: bool) -> Row:
    """Result of the command for one recording of the foreign simulation."""
    from collector.cli import main

    recording = draw(seed, meter)
    with TemporaryDirectory() as folder:
        asked = [part for name, path in recording.write(Path(folder)).items() for part in (f"--{name}", str(path))]
        said, start = io.StringIO(), time.process_time()
        with contextlib.redirect_stdout(said):
            main(["sensor", "--json", "--quiet", *asked])
        seconds = time.process_time() - start
    return judged(seed, meter, json.loads(said.getvalue()), asdict(recording.truth), seconds)


def figures(rows: Sequence[Row]) -> Figures:
    """Figures by source."""
    found: Figures = {}
    for meter, name in SOURCES.items():
        part = [row for row in rows if row["meter"] is meter]
        wrong = [row for row in part if row["found"] not in ("undetermined", row["kernel"])]
        errors = {quantity: np.array([row["errors"][quantity] for row in part if quantity in row["errors"]]) for quantity in QUANTITIES}
        own: dict[str, object] = {
            "recordings": len(part),
            "right": sum(row["found"] == row["kernel"] for row in part),
            "wrong": len(wrong),
            "wrong ones": ", ".join(f"{row['found']} for {row['kernel']} (seed {row['seed']})" for row in wrong),
            "seconds": float(np.mean([row["seconds"] for row in part])),
        }
        for quantity, limit in (("period", 0.1), ("width", 1.0)):
            own[f"{quantity} within {limit:g} ms"] = (
                float(np.mean(np.abs(errors[quantity][:, 0]) <= limit)) if len(errors[quantity]) else None
            )
        for quantity, pairs in errors.items():
            if len(pairs):
                score = np.abs(pairs[:, 0] / np.maximum(pairs[:, 1], 1e-9))
                own |= {f"{quantity} within {count} errors": float(np.mean(score <= count)) for count in (1, 2)}
                own |= {f"{quantity} rms": float(np.sqrt(np.mean(score**2))), f"{quantity} stated": float(np.median(pairs[:, 1]))}
        found[name] = own
    return found


def said(found: Mapping[str, Mapping[str, object]], as_json: bool) -> None:
    """Print figures."""
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for title, own in found.items():
        click.echo(title)
        for name, value in own.items():
            click.echo(f"  {name:24}{f'{value:.3g}' if isinstance(value, float) else value}")


@click.command()
@click.option("--count", default=24, show_default=True)
@click.option("--seed", default=0, show_default=True, help="The first seed.")
@click.option("--json", "as_json", is_flag=True)
def main(count: int, seed: int, as_json: bool) -> None:
    """Test recordings of the foreign simulation."""
    said(figures([by_command(one, meter) for meter in SOURCES for one in range(seed, seed + count)]), as_json)


if __name__ == "__main__":
    main()
