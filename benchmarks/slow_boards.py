"""What averaging is named on boards that rise slowly of their own, from load stamps and with a meter.  All figures are simulated.

    python benchmarks/slow_boards.py [--boards 60] [--first 0] [--source load|meter] [--verbose]

No published board rises slowly as a whole; where one did, load stamps alone could pass its rise for the sensor's.  Half of the sensors do
not average, the others are those of `benchmarks/sensor_identification.py`; boards rise in 5 to 200 ms, in one of six forms.
"""

from collections import Counter
from dataclasses import replace

import click
import numpy as np
from random_sensors import SLOW_FORMS, PlantedSensor, draw_sensor, record
from sensor_identification import NAME, sensor_record

from collector.sensor.identification import identify_sensor

FASTEST_S, SLOWEST_S = 5e-3, 0.2
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


@click.command()
@click.option("--boards", default=60, show_default=True)
@click.option("--first", default=0, show_default=True, help="Seed of the first.")
@click.option("--source", type=click.Choice(("load", "meter")), default="load", show_default=True)
@click.option("--verbose", is_flag=True, help="A line for every board.")
def main(boards: int, first: int, source: str, verbose: bool) -> None:
    """Print how many were named, and how many of them wrongly."""
    counts: Counter[tuple[str, str]] = Counter()
    for seed in range(first, first + boards):
        random = np.random.default_rng(seed)
        planted = slow_board(draw_sensor(random), random)
        found = identify_sensor(sensor_record(record(planted, random), source), NAME).calibration
        outcome = "open" if found.averaging == "undetermined" else "right" if found.averaging == planted.kernel else "wrong"
        likeness = f"{planted.slow_form}{', no averaging' if planted.kernel == 'none' else ''}"
        counts[likeness, outcome] += 1
        if verbose:
            width = "" if found.window_s is None else f" {found.window_s * 1e3:.1f} ms"
            truth = f"{planted.kernel} {planted.width_s * 1e3:.1f} ms, T {planted.period_s * 1e3:.0f} ms"
            click.echo(f"{seed}: {planted.slow_form} of {planted.slow_s * 1e3:.0f} ms, {truth} → {found.averaging}{width}: {outcome}")
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
