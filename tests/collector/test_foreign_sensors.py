"""Stated errors of a sensor hold on recordings from a world that shares no code with the collector."""

from foreign_sensors import by_command

RECORDINGS = [*((seed, True) for seed in range(100, 108)), *((seed, False) for seed in range(108, 112))]


def test_stated_errors_are_neither_too_narrow_nor_too_wide():
    rows = [by_command(seed, meter) for seed, meter in RECORDINGS]
    assert not [row for row in rows if row["found"] not in (row["kernel"], "undetermined")]
    ratios = {(name, row["seed"]): error / std for row in rows for name, (error, std) in row["errors"].items()}
    assert len(ratios) >= 30
    assert not {key: z for key, z in ratios.items() if abs(z) > 3}
    # Of a calibrated error 95 % lie within two, and 68 % within one: shares of 85 and 90 % are some three deviations away.
    assert sum(abs(z) <= 2 for z in ratios.values()) >= 0.85 * len(ratios)
    fitted = [abs(z) <= 1 for (name, _), z in ratios.items() if name != "period"]
    assert sum(fitted) <= 0.9 * len(fitted)


def test_a_width_of_several_periods_of_a_quick_load_is_found():
    """The minimum of the misfit is a millisecond wide there: 103 ms under a load of 27 ms."""
    error_ms, std_ms = by_command(86018, True)["errors"]["width"]
    assert abs(error_ms) < 3.0 * std_ms
