"""The command `estimate`, from files to text and exit status; one line for what cannot be asked for, read or written."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from estimator import OperatingPointError
from estimator.bundle.files import bundle_from_document, save_bundle
from estimator.display.estimates import SUMMARY_FIELDS
from estimator.questions.sweeping import VALUES
from estimator.uncertainty.validity import SIMULATED
from estimator.vocabulary.specifications import parse_clocks
from tests.estimator.estimating import OPERATORS, bundle_document, fails, printed, run
from tests.processes import PYTHON, ended
from tests.test_repository import ALL_OPTIONAL


def test_json_holds_exactly_the_promised_fields_in_si_units(bundle, workload):
    status, out, err = run(workload, f"--bundle {bundle} --freq 705 --json")
    result = json.loads(out)
    assert (status, err) == (0, f"note: layers: {SIMULATED.format('test')}\n")
    assert result["notes"] == [SIMULATED.format("test")]
    assert list(result) == [*SUMMARY_FIELDS, "kernels", "warnings", "notes"]
    assert result["validity"] == "measured"
    assert (result["workload"], result["bundle"], result["sm_clock_mhz"]) == ("layers", "test 0.1.0", 705.0)
    assert result["energy_j"] == pytest.approx(result["power_w"] * result["latency_s"])
    assert result["latency_s_std"] == pytest.approx(0.05 * result["latency_s"], rel=0.1)
    assert len(result["kernels"]) == 3
    for kernel in result["kernels"]:
        assert list(kernel) == ["operator", "count", "latency_s", "power_w", "energy_j", "utilization", "outside_validity"]
        assert kernel["outside_validity"] is False
        assert list(kernel["utilization"]) == ["dram", "l2", "shared", "tensor", "cuda", "sfu"]
        assert kernel["energy_j"] == pytest.approx(kernel["power_w"] * kernel["latency_s"])
    total = sum(kernel["count"] * kernel["latency_s"] for kernel in result["kernels"])
    assert result["latency_s"] == pytest.approx(total, rel=0.05)


def test_the_table_says_that_the_board_was_simulated_and_shows_as_many_kernels_as_asked(bundle, workload):
    few, every, none = (run(workload, f"--bundle {bundle} --freq 900 --kernels", most)[1] for most in (1, "all", 0))
    told = (
        ", fitted on a simulated board",
        "900 MHz",
        " ms",
        " W",
        "±",
        "gemm.linear bf16 batch=1 m=",
    )
    assert all(text in every for text in told)
    assert "2 more kernels" in few
    assert "more kernels" not in every
    assert every.count("bf16") == 3
    assert "bf16" not in none
    several, chosen = (run(workload, f"--bundle {bundle} --freqs 900,1200 {most}")[1] for most in ("", "--kernels 1"))
    assert (several.count("bf16"), chosen.count("bf16")) == (0, 2), "one table a clock, where they are asked for"


def test_control_characters_of_a_file_never_reach_the_terminal(tmp_path, bundle):
    path = tmp_path / "w.json"
    name = "a\x1b[31m\nb"
    path.write_text(json.dumps({"format": "wattprint-workload", "format_version": "1.0", "name": name, "operators": OPERATORS}))
    _, out, err = run(path, f"--bundle {bundle} --gpu-spec a10")
    assert "\x1b" not in out + err
    assert "workload a?[31m?b, " in out


def test_unknown_power_is_null_and_never_nan(tmp_path, workload):
    path = tmp_path / "latency-only.json"
    save_bundle(bundle_from_document(bundle_document(power=None, uncertainty={})), path)
    asked = (workload, "--bundle", path, "--freq 900")
    result = json.loads(run(asked, "--json")[1], parse_constant=pytest.fail)
    assert result["latency_s"] > 0
    assert [result[name] for name in ("power_w", "power_w_std", "energy_j", "energy_j_std", "latency_s_std")] == [None] * 5
    assert all("nan" not in run(asked, words)[1] for words in ((), "--csv"))


def test_settings_change_the_result_the_way_physics_says(bundle, workload):
    def asked(*words):
        return printed(workload, f"--bundle {bundle}", words)

    base = asked("--freq", 900)
    slower = {"--set dram_bytes_per_s=1e12": 1.0, "--set num_sms=54": 1.5, "--efficiency dram=0.5": 1.0, "--precision fp32": 2.0}
    for words, factor in slower.items():
        assert asked("--freq 900", words)["latency_s"] > factor * base["latency_s"], words
    assert asked("--freq 900 --host-launch-us 1000")["latency_s"] == pytest.approx(72e-3, rel=0.05)
    assert asked("--freq 1410 --power-cap 250") == asked("--freq 1410")
    capped = asked("--freq 1410 --power-cap 150")
    assert capped["sm_clock_mhz"] < 1410
    assert capped["power_w"] <= 150


def test_the_ending_of_the_file_names_the_form_as_a_flag_does_and_csv_has_the_numbers_of_json(tmp_path, bundle, workload):
    asked, printed = (workload, f"--bundle {bundle} --freqs 510,900"), {}
    for ending in ("json", "csv", ""):
        printed[ending] = run(asked, *([f"--{ending}"] if ending else []))[1]
        out = tmp_path / f"out{ending and '.'}{ending}"
        assert run(asked, "-o", out)[:2] == (0, "")
        assert out.read_text() == printed[ending]
    for row, result in zip(csv.DictReader(io.StringIO(printed["csv"])), json.loads(printed["json"]), strict=True):
        assert [row[name] for name in SUMMARY_FIELDS[:5]] == [str(result[name]) for name in SUMMARY_FIELDS[:5]]
        assert [float(row[name]) for name in VALUES] == [result[name] for name in VALUES]


def test_a_cold_start_loads_nothing_heavy(bundle, workload):
    code = (
        "import sys; from estimator.cli import main; status = main(sys.argv[1:]);"
        f"heavy = {{'http.server', *{ALL_OPTIONAL}}} & set(sys.modules); assert not heavy, heavy"
    )
    assert not ended(*PYTHON, code, workload, "--bundle", bundle, "--json").returncode


@pytest.mark.parametrize(
    "text, clocks",
    [
        ("900", (900.0,)),
        ("1410,510,900,510", (510.0, 900.0, 1410.0)),
        ("510:600:45", (510.0, 555.0, 600.0)),
        ("510:599:45", (510.0, 555.0)),
        ("0.1:0.3:0.1", (0.1, 0.2, pytest.approx(0.3))),
        ("510:540:15,900", (510.0, 525.0, 540.0, 900.0)),
    ],
)
def test_clock_lists_read_as_people_write_them(text, clocks):
    assert parse_clocks(text, ()) == clocks


@pytest.mark.parametrize("text", ["", " ", "a", "1:2", "1:2:3:4", "2:1:1", "1:2:-1", "1:9:0", "inf", "1:inf:1", "-5", "0:1e9:1"])
def test_impossible_clock_lists_are_refused(text):
    with pytest.raises(OperatingPointError):
        parse_clocks(text, ())


# Refusals -------------------------------------------------------------------------------------------------------------

WRONG_USAGE = [
    "",
    "WORKLOAD",
    "--bundle BUNDLE",
    "WORKLOAD --bundle BUNDLE --freqs ''",
    "WORKLOAD --bundle BUNDLE --freqs current",
    "WORKLOAD --bundle BUNDLE --set num_sms",
    "WORKLOAD --bundle BUNDLE --set num_sms=1 --set num_sms=2",
    "WORKLOAD --bundle BUNDLE --kernels -1",
    f"WORKLOAD --bundle BUNDLE --kernels {'9' * 99}",
    "WORKLOAD --bundle BUNDLE --attention none",
    "WORKLOAD --bundle BUNDLE --colour red",
    "WORKLOAD --bundle BUNDLE --json --csv",
    "best WORKLOAD --bundle BUNDLE --chart energy",
    "bundles --freq 1",
    "swep WORKLOAD --bundle BUNDLE",
]


@pytest.mark.parametrize("words", WRONG_USAGE)
def test_wrong_usage_is_one_line_and_status_2(bundle, workload, words):
    asked = words.replace("WORKLOAD", workload).replace("BUNDLE", bundle)
    assert "--help" in fails(asked or (), status=2)


@pytest.mark.parametrize(
    "words, status, message",
    [
        ("--freq 0", 1, "0 MHz is outside"),
        ("--freqs 900,5000", 1, "5000 MHz is outside what a100-pcie-40gb can lock: 210 to 1410 MHz"),
        ("--power-cap 251", 1, "power cap 251 W is above the limit of a100-pcie-40gb, 250 W"),
        ("--set num_sm=132", 1, "known: num_sms"),
        ("--efficiency disk=0.5", 1, "no efficiency of 'disk' can be set; known: dram"),
        ("--attention flash", 1, "no attention to fuse"),
        ("--efficiency dram=nan", 2, "--efficiency"),
        ("--power-cap -5", 2, "--power-cap"),
        ("--host-launch-us 1e30", 2, "x<=1000000.0"),
        ("--efficiency dram=1e-300", 2, "0.001<=x<=1.5"),
        ("--precision fp17", 2, "unknown precision 'fp17'; known: fp64"),
        ("--precision ''", 2, "empty name"),
        ("--out ''", 2, "empty"),
        ("--gpu-spec ''", 2, "empty"),
        ("--precision bf16 --precision fp32", 2, "`estimate sweep` takes several"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(bundle, workload, words, status, message):
    assert message in fails(workload, f"--bundle {bundle}", words, status=status)


def test_a_bundle_that_cannot_be_read_is_refused_with_what_to_do(workload):
    assert "estimate bundles" in fails(workload, "--bundle ./tests")
    assert "empty" in fails(workload, "--bundle ''", status=2)
    assert len(fails(workload, "--bundle", "x" * 100_000)) < 3000


# Disks and names ------------------------------------------------------------------------------------------------------


def test_a_full_disk_behind_stdout_is_one_line(bundle, workload):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    command = [sys.executable, "-m", "estimator.cli", workload, "--bundle", bundle, "--quiet"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "stdout cannot be written (No space left" in done.stderr


def test_workloads_of_one_name_and_boards_stay_apart(bundle, workload, tmp_path):
    other = tmp_path / "other.json"
    document = json.loads(Path(workload).read_text())
    other.write_text(json.dumps({**document, "operators": document["operators"][:1]}))
    _, out, _ = run(workload, other, f"--bundle {bundle} --gpu own,l4 --freq 900")
    assert len({line for line in out.splitlines() if line.startswith("kernels of layers")}) == 4
    assert f"kernels of layers ({other}) on l4 at" in out
