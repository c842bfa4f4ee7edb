"""What averaging is named on boards that rise slowly of their own, from load stamps and with a meter.  All figures are simulated.

    python benchmarks/slow_boards.py [--boards 60] [--first 0] [--source load|meter] [--late] [--verbose]

No published board rises slowly as a whole; where one did, load stamps alone could pass its rise for the sensor's.  Half of the sensors do
not average, the others are those of `benchmarks/sensor_identification.py`; boards rise in 5 to 200 ms, in one of six forms.
With --late a part alone is late, 5 to 30 % in 5 to 60 ms, up and down, of sensors as published: widths and delays of those rightly named,
in their stated errors.
"""

from collections import Counter
from dataclasses import replace

import click
import numpy as np
from random_sensors import SLOW_FORMS, PlantedSensor, draw_sensor, record
from sensor_identification import NAME, sensor_record

from collector.sensing.identify import identify_sensor

FASTEST_S, SLOWEST_S = 5e-3, 0.2
LATE_SHARES, LATE_S = (0.05, 0.3), (5e-3, 6e-2)
LOAD_RATIO = 1.27
"""Load of a sensor that was drawn with another one of its own, in update periods: the recommended one."""
SYMMETRIC = ("one pole", "two poles", "ramp")
"""Forms that rise and fall alike: on a sensor that does not average they are, to load stamps, the same as an averaging."""


def slow_board(planted: PlantedSensor, random: np.random.Generator) -> PlantedSensor:
    """A sensor, or one that does not average in its place, on a board that rises slowly."""
    slow_s = float(np.exp(random.uniform(np.log(FASTEST_S), np.log(SLOWEST_S))))
    if random.random() < 0.5 or planted.kernel == "trailing-mean":
        planted = replace(planted, kernel="none", width_s=0.0, load_period_s=LOAD_RATIO * planted.period_s)
    return replace(planted, slow_form=str(random.choice(SLOW_FORMS)), slow_s=slow_s)


def late_board(planted: PlantedSensor, random: np.random.Generator) -> PlantedSensor:
    """A sensor on a board of which a part follows late."""
    slow_s = float(np.exp(random.uniform(*np.log(LATE_S))))
    return replace(planted, slow_form="half late", slow_s=slow_s, late_share=float(random.uniform(*LATE_SHARES)))


def within(rows: list[tuple[float, float]]) -> str:
    """Shares of errors (error, stated) within one and two stated ones."""
    stated = np.array([abs(error) / std for error, std in rows])
    return f"{np.mean(stated <= 1.0):.0%}, {np.mean(stated <= 2.0):.0%}, largest {stated.max():.1f}"


@click.command()
@click.option("--boards", default=60, show_default=True)
@click.option("--first", default=0, show_default=True, help="Seed of the first.")
@click.option("--source", type=click.Choice(("load", "meter")), default="load", show_default=True)
@click.option("--late", is_flag=True, help="Boards of which a part alone is late.")
@click.option("--verbose", is_flag=True, help="A line for every board.")
def main(boards: int, first: int, source: str, late: bool, verbose: bool) -> None:
    """Print how many were named, and how many of them wrongly."""
    counts: Counter[tuple[str, str]] = Counter()
    widths: list[tuple[float, float]] = []
    delays: list[tuple[float, float]] = []
    for seed in range(first, first + boards):
        random = np.random.default_rng(seed)
        planted = late_board(draw_sensor(random), random) if late else slow_board(draw_sensor(random), random)
        recording = record(planted, random)
        found = identify_sensor(sensor_record(recording, source), NAME).calibration
        outcome = "open" if found.averaging == "undetermined" else "right" if found.averaging == planted.kernel else "wrong"
        likeness = f"{planted.slow_form}{', no averaging' if planted.kernel == 'none' else ''}"
        counts[likeness, outcome] += 1
        if outcome == "right" and found.window_s and found.window_std_s and found.delay_s is not None and found.delay_std_s:
            widths.append((found.window_s - planted.width_s, found.window_std_s))
            delays.append((found.delay_s - (planted.delay_s - recording.early_s), found.delay_std_s))
        if verbose:
            width = "" if found.window_s is None else f" {found.window_s * 1e3:.1f} ± {(found.window_std_s or 0.0) * 1e3:.1f} ms"
            truth = f"{planted.kernel} {planted.width_s * 1e3:.1f} ms, T {planted.period_s * 1e3:.0f} ms"
            click.echo(f"{seed}: {planted.slow_form} of {planted.slow_s * 1e3:.0f} ms, {truth} → {found.averaging}{width}: {outcome}")
    if late and widths:
        click.echo(f"{len(widths)} rightly named; within one, two stated errors: widths {within(widths)}; delays {within(delays)}")
    for likeness in sorted({name for name, _ in counts}):
        click.echo(f"{likeness:<28}" + ", ".join(f"{counts[likeness, outcome]} {outcome}" for outcome in ("right", "open", "wrong")))
    apart = {key: count for key, count in counts.items() if key[0].split(",")[0] not in SYMMETRIC}
    named = sum(count for key, count in counts.items() if key[1] != "open")
    click.echo(f"all: {boards} boards, {named} named, {sum(count for key, count in counts.items() if key[1] == 'wrong')} wrongly")
    told = sum(count for key, count in apart.items() if key[1] != "open")
    click.echo(
        f"boards that stamps can tell from a sensor: {sum(apart.values())}, {told} named, "
        f"{sum(count for key, count in apart.items() if key[1] == 'wrong')} wrongly"
    )


if __name__ == "__main__":
    main()
