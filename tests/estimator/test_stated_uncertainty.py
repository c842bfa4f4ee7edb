"""A number whose uncertainty is unknown says so, and why, wherever it is shown."""

from dataclasses import replace

import pytest

from estimator import best, estimate, load_bundle, load_gpu, write_workload
from estimator.bundle.files import save_bundle
from tests.estimator.estimating import question, run
from tests.estimator.synthetic import transformer
from tests.fitter.measured import PLANTED

KNOWN = "a100-pcie-40gb-eager"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A workload, a bundle that holds no errors of rows outside its fit, and one without power."""
    folder = tmp_path_factory.mktemp("silent")
    write_workload(replace(transformer(1024, 512, 4), name="made_b2_s512"), folder / "w.json")
    save_bundle(PLANTED, folder / "silent.json")
    save_bundle(replace(load_bundle(KNOWN), power=None, digest=""), folder / "powerless.json")
    return {name: str(folder / f"{name}.json") for name in ("w", "silent", "powerless")}


@pytest.mark.parametrize("command", [(), "sweep", "best --goal latency", "compare --baselines"])
@pytest.mark.parametrize("bundle, reason", [("silent", "states no uncertainty"), ("powerless", "has no power coefficients"), (KNOWN, "")])
def test_a_note_says_why_numbers_are_unknown(files, command, bundle, reason):
    status, out, err = run(command, files["w"], "--bundle", files.get(bundle, bundle), "--freqs 900")
    assert status in (0, 3)
    told = [line for line in err.splitlines() if "the bundle" in line and line.startswith("note")]
    assert told == ([f"note: made_b2_s512: the bundle {reason}"] if reason else [])
    assert ("±" in out) == (bundle != "silent")


def test_a_launch_cost_that_no_run_showed_is_as_uncertain_as_its_prior_unless_given():
    bundle = load_bundle(KNOWN)
    latency = {name: value for name, value in bundle.uncertainty["latency"].items() if name != "launch"}
    host = replace(bundle.host, launch_ln_std=0.5)
    kernels_alone = replace(bundle, host=host, uncertainty={**bundle.uncertainty, "latency": latency})
    bound = transformer(16, 256, 4)
    known, given = (estimate(bound, kernels_alone, host_launch_s=launch_s)[0] for launch_s in (None, host.launch_s))
    assert known.launch_bound_share > 0.9
    assert known.latency_s_std / known.latency_s == pytest.approx(0.5, abs=0.1)
    assert given.latency_s_std < 0.5 * known.latency_s_std
    hosts = (bundle.host, replace(bundle.host, launch_s=1e-3))  # other GPUs stand in other hosts
    one, other = (estimate(bound, replace(bundle, host=host), gpu=load_gpu("a10"))[0] for host in hosts)
    assert (one.latency_s, one.latency_s_std) == (other.latency_s, other.latency_s_std)
    assert one.latency_s_std / one.latency_s == pytest.approx(0.5, abs=0.1)
    told = [[line.partition(" an operator ")[2] for line in one.notes if "the host's launches" in line] for one in (known, given)]
    assert told == [["(--host-launch-us), assumed ± 50%: most of the latency's ±"], ["(--host-launch-us)"]]


def test_without_stated_errors_no_clock_can_be_told_from_the_best():
    clocks = (600.0, 900.0, 1200.0, 1410.0)
    asked = question(transformer(1024, 512, 4), PLANTED, sm_clock_mhz=clocks)
    assert best(asked).clocks_mhz == (600.0, 1410.0)
    assert len(best(replace(asked, bundle=load_bundle(KNOWN))).alike) < len(clocks)
