"""Stated errors of a sensor hold on recordings from a world that shares no code with the collector."""

import json

from collector.cli import main
from tests.sensor_world import draw

RECORDINGS = [*((seed, True) for seed in range(100, 108)), *((seed, False) for seed in range(108, 112))]


def told(folder, seed, meter, capsys):
    """Each quantity that the command states with an error: its error over the stated one.  The kernel must not be wrong."""
    recording = draw(seed, meter)
    truth, paths = recording.truth, recording.write(folder)
    main(["sensor", "--json", "--quiet", *(part for name, path in paths.items() for part in (f"--{name}", str(path)))])
    said = json.loads(capsys.readouterr().out)
    assert said["averaging"] in (truth.kernel, "undetermined"), f"seed {seed}: {said['averaging']} for {truth}"
    true = {"update_period_s": truth.recorded_period_ms / 1e3, "gain": truth.gain, "offset_w": truth.offset_w}
    if said["averaging"] in ("boxcar", "low-pass"):
        true |= {"window_s": truth.width_ms / 1e3, "delay_s": truth.delay_ms / 1e3}
    for name, value in true.items():
        base, _, unit = name.rpartition("_") if name.endswith(("_s", "_w")) else (name, "", "")
        if said[name] is not None:
            yield f"{name} of seed {seed}", (said[name] - value) / said[f"{base}_std{'_' if unit else ''}{unit}"]


def test_stated_errors_are_neither_too_narrow_nor_too_wide(tmp_path, capsys):
    ratios = {name: z for seed, meter in RECORDINGS for name, z in told(tmp_path, seed, meter, capsys)}
    assert len(ratios) >= 30
    far = {name: round(z, 1) for name, z in ratios.items() if abs(z) > 3}
    assert not far
    # Of a calibrated error 95 % lie within two, and 68 % within one: shares of 85 and 90 % are some three deviations away.
    assert sum(abs(z) <= 2 for z in ratios.values()) >= 0.85 * len(ratios)
    fitted = [abs(z) <= 1 for name, z in ratios.items() if not name.startswith("update_period_s")]
    assert sum(fitted) <= 0.9 * len(fitted)
