"""The verdict on a fit says what is known, and no more."""

import threading
from dataclasses import replace

import numpy as np
import pytest

import fitter.commands.fit
from estimator.blocks.model import section_of as section_of_blocks
from fitter.blocks.section import fit_block_model
from fitter.bundle.calibration import Calibration
from fitter.instructions.section import section_of
from fitter.report.verdict import family_table, verdict_lines
from fitter.validate.predictions import predict_kernel_rows
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, various_operators
from tests.fitter.test_block_count import GPU, planted
from tests.fitter.test_instruction_rows import fitted

BUNDLE = planted_bundle()


def calibration(found):
    return Calibration(
        bundle=BUNDLE, selection=selection_of(), errors=(), held_out={"kernels": found} if found is not None else {}, warnings=()
    )


@pytest.fixture(scope="module")
def predicted():
    rows = kernel_rows(BUNDLE, various_operators(40))
    return predict_kernel_rows(BUNDLE, rows)


@pytest.mark.parametrize("slower, hotter, energy", [(1.0, 1.0, "0.0"), (1.25, 1.0, "20.0"), (1.25, 0.8, "0.0"), (2.0, 1.25, "60.0")])
def test_errors_are_those_of_the_rows_and_energy_that_of_their_product(predicted, slower, hotter, energy):
    found = predicted.assign(measured_latency=slower * predicted["predicted_latency"], measured_power=hotter * predicted["predicted_power"])
    line = verdict_lines(BUNDLE, calibration(found))[1]
    assert f"err by {100 * abs(1 / slower - 1):.1f} % in latency, {100 * abs(1 / hotter - 1):.1f} % in power, {energy} % in energy" in line
    assert f"({len(found)} rows)" in line
    table = family_table(calibration(found))
    assert sum(row[1] for row in table.rows) == len(found)
    assert all(f"{row[4]:.1f}" == energy for row in table.rows)
    assert [row[0] for row in table.rows] == sorted(found["family"].unique())


@pytest.mark.parametrize(
    "change, found",
    [
        ({"clocks_mhz": (900.0, 900.0)}, "other clocks (an extrapolation)"),
        ({"power": None, "voltage": None, "idle": None}, "power and energy (the data have none below the limit)"),
        (
            {"groups": {key: replace(group, rows=0 if key == "softmax" else 9, ln_std={"x": 0.1}) for key, group in BUNDLE.groups.items()}},
            "of softmax (",
        ),
    ],
)
def test_what_the_data_lack_is_named(predicted, change, found):
    """Without power in the rows no error of power or energy is stated."""
    lacking = predicted.assign(measured_power=np.nan) if "power" in change else predicted
    lines = verdict_lines(replace(BUNDLE, **change), calibration(lacking))
    assert any(line.startswith("missing: ") and found in line for line in lines)
    assert ("in power" in lines[1]) == ("power" not in change)


def test_instructions_and_grids_alone_are_judged_for_what_they_are():
    """Neither kernels nor power are missed, and no row was to be held out."""
    bare = replace(BUNDLE, power=None, voltage=None, idle=None, errors=())
    bare = replace(bare, groups={key: replace(group, rows=0) for key, group in bare.groups.items()})
    grids = replace(bare, block_models=section_of_blocks([fit_block_model(planted(), GPU.num_sms)]))
    lines = verdict_lines(grids, calibration(None))
    assert "describes" in lines[0]
    assert lines[1].startswith("1 block-count model(s): rms error on grids left out ")
    assert len(lines) == 2
    energies = fitted()
    lines = verdict_lines(replace(bare, instruction_energies=section_of(energies)), calibration(None))
    assert lines[1].startswith(
        f"energies of {len(section_of(energies)['instructions'])} instructions from {energies.rows} runs, standard error "
    )
    assert len(lines) == 2


def test_a_fit_without_held_out_rows_claims_no_error():
    assert "errors are unknown" in verdict_lines(BUNDLE, calibration(None))[1]


@pytest.mark.parametrize("words, told", [((), True), (("--quiet",), False)])
def test_off_a_terminal_a_long_fit_says_what_it_does_and_stops_saying_it(words, told, shared_data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fitter.commands.fit, "PROGRESS_S", 0.02)
    before = set(threading.enumerate())
    fitter.commands.fit.run([str(shared_data / "energaizer" / "a10_900mhz.csv"), "-o", str(tmp_path / "a.json"), "--holdout", "0", *words])
    assert ("fitting all rows" in capsys.readouterr().err.splitlines()) == told
    for thread in set(threading.enumerate()) - before:
        thread.join(1.0)
        assert not thread.is_alive()
