"""Three models measured and estimated as a whole: `collect run` compared with `estimate trace` and `estimate`.

    python -m scripts.end_to_end --gpu 0 --bundle bundle.json --sensor sensor.json --folder results

Each model runs twice, with a few and with many passes; the common parts (start of Python, weights, warm-up) cancel in the difference.
If the start takes longer in one run, with the board at rest, its time and the board's power at rest correct the difference.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from estimator.vocabulary.whole_file import write_whole

MODELS_FILE: Final = Path(__file__).with_name("card_models.py")
SIZES: Final[dict[str, tuple[str, ...]]] = {
    "decoder_prefill": ("--batch", "1", "--sequence", "2048"),
    "decoder_decode": ("--batch", "32", "--sequence", "2048"),
    "vision": ("--batch", "64", "--image-size", "224"),
}
"""Options of `estimate trace`; equal to the defaults of card_models.py."""

SMALL_SIZES: Final[dict[str, tuple[str, ...]]] = {
    "decoder_prefill": ("--batch", "1", "--sequence", "64"),
    "decoder_decode": ("--batch", "1", "--sequence", "64"),
    "vision": ("--batch", "1", "--image-size", "64"),
}
FEW_S, MANY_S = 2.0, 9.0
"""Approximate time of the passes of the two runs [s]: the power of the difference is the power of seven settled seconds."""

FEWEST_PASSES: Final = 3
REHEARSED_PASSES: Final = (3, 43)
LIMIT_S: Final = 100.0
"""Longest step [s]: a start of 30 s, two rests, MANY_S of passes, and as much again; the stage of a lent card has 330 s for six of them."""
END_S: Final = 15.0
"""Time for a step to end its program [s]: one that goes on would share the board with the next step."""
WANTED: Final[dict[str, float]] = {"latency": 0.12, "power": 0.08, "energy": 0.12}
"""Largest error of each figure [1]."""


class EndToEndError(Exception):
    """A step that failed; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of a model: time [s], energy [J] and its standard deviation, mean power [W]."""

    latency_s: float
    energy_j: float
    energy_std_j: float

    @property
    def power_w(self) -> float:
        """Mean power while it runs [W]."""
        return self.energy_j / self.latency_s


def difference(few: Mapping[str, Any], many: Mapping[str, Any]) -> Pass:
    """One pass, from two runs with different numbers of `passes`, their `seconds`, `program_s` and `energy_j` of the whole program.

    The rest of the program is the same in both except for its time, in which the board rests (`rest_w`).  Raises EndToEndError if the
    run with more passes is not longer.
    """
    more = many["passes"] - few["passes"]
    seconds = many["seconds"] - few["seconds"]
    resting_s = many["program_s"] - few["program_s"] - seconds
    joule = many["energy_j"] - few["energy_j"] - resting_s * (many["rest_w"] + few["rest_w"]) / 2
    if more < 1 or not seconds > 0 or not joule > 0:
        raise EndToEndError(f"{many['passes']} passes took no longer or no more energy than {few['passes']}; measure again")
    std = math.hypot(few["energy_std_j"] or 0.0, many["energy_std_j"] or 0.0)
    return Pass(latency_s=seconds / more, energy_j=joule / more, energy_std_j=std / more)


def compared(measured: Pass, estimated: Mapping[str, Any]) -> dict[str, Any]:
    """Measured and estimated figures, and the errors of the estimates relative to the measurements."""
    pairs = {
        "latency": ("latency_s", measured.latency_s),
        "power": ("power_w", measured.power_w),
        "energy": ("energy_j", measured.energy_j),
    }
    document: dict[str, Any] = {"measured_energy_std_j": measured.energy_std_j, "errors": {}}
    for name, (key, value) in pairs.items():
        document[f"measured_{key}"], document[f"estimated_{key}"] = value, estimated[key]
        document["errors"][name] = estimated[key] / value - 1.0
    return document


def reached(document: Mapping[str, Any]) -> bool:
    """Whether every error is within WANTED."""
    return all(abs(one["errors"][name]) <= most for one in document.values() for name, most in WANTED.items())


def lines_of(document: Mapping[str, Any]) -> list[str]:
    """The comparison for people."""
    lines = [f"{'model':16} {'measured':>28} {'estimated':>28} {'errors':>24}"]
    for name, one in document.items():
        sides = [
            f"{one[f'{side}_latency_s'] * 1e3:8.3f} ms {one[f'{side}_power_w']:6.1f} W {one[f'{side}_energy_j']:6.2f} J"
            for side in ("measured", "estimated")
        ]
        errors = " ".join(f"{100 * one['errors'][key]:+6.1f} %" for key in WANTED)
        lines.append(f"{name:16} {sides[0]:>28} {sides[1]:>28} {errors:>24}")
    return lines


def _ran(command: Sequence[str], what: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """A step's output.  Raises EndToEndError if it fails."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as step:
        try:
            out, told = step.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            step.terminate()
            with suppress(subprocess.TimeoutExpired):
                step.wait(END_S)
            step.kill()
            raise EndToEndError(f"{what}: no end within {limit_s:g} s, stopped") from error
    if step.returncode not in (0, 3):
        last = next((line.strip()[:300] for line in reversed(told.splitlines()) if line.strip()), "no reason given")
        raise EndToEndError(f"{what}: {last} (exit status {step.returncode})")
    return subprocess.CompletedProcess(command, step.returncode, out, told)


def _estimated(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The estimate of one pass, from a trace on the meta device."""
    workload = given.folder / f"{name}.json"
    sizes = (SMALL_SIZES if given.rehearse else SIZES)[name]
    traced = [given.python, "-m", "estimator.cli", "trace", f"{MODELS_FILE}:{name}", *sizes]
    _ran([*traced, "--precision", "bf16", "--attention", "flash", "--force", "-o", str(workload)], f"tracing {name}", given.limit_s)
    told = [sys.executable, "-m", "estimator.cli", str(workload), "--bundle", given.bundle, "--json", "-q"]
    answer: dict[str, Any] = json.loads(_ran(told, f"estimating {name}", given.limit_s).stdout)
    return answer


def _measured(name: str, passes: int, given: argparse.Namespace) -> dict[str, Any]:
    """One run of `passes` passes: their time as the program measured it, the energy of the whole program."""
    collect = [sys.executable, "-m", "collector.cli", "run", "--gpu", given.gpu, "--json", "-q"]
    if given.sensor:
        collect += ["--sensor", given.sensor]
    model = [given.python, str(MODELS_FILE), name, "--passes", str(passes)]
    if given.rehearse:
        model += ["--device", "cpu", "--small"]
    done = _ran([*collect, "--", *model], f"measuring {name}", given.limit_s)
    told = next((line for line in done.stderr.splitlines() if line.startswith('{"model"')), None)
    if told is None:
        raise EndToEndError(f"measuring {name}: the program said nothing of its passes")
    run = json.loads(done.stdout)["runs"][0]
    return {**json.loads(told), "program_s": run["latency_s"], **{key: run[key] for key in ("energy_j", "energy_std_j", "rest_w")}}


def validated(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """A model, measured and estimated.  Raises EndToEndError if a step fails."""
    estimated = _estimated(name, given)
    each = estimated["latency_s"]
    few, many = REHEARSED_PASSES if given.rehearse else (max(FEWEST_PASSES, round(seconds / each)) for seconds in (FEW_S, MANY_S))
    runs = [_measured(name, passes, given) for passes in (few, many)]
    return compared(difference(*runs), estimated)


def earlier(path: Path) -> dict[str, Any]:
    """The models in a file of results; none where it is missing.  Raises EndToEndError for another file."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["models"] if path.exists() else {}
    except (ValueError, KeyError, TypeError) as error:
        raise EndToEndError(f"{path}: holds no models; remove it") from error
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 if done, 1 if a model failed, 3 if done with errors above WANTED.

    The results are whole after each model; a model that is among them is not measured again.
    """
    parser = argparse.ArgumentParser(description="Three models measured whole and estimated whole.")
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--sensor", default="")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has PyTorch")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="time of each step [s]")
    parser.add_argument("--rehearse", action="store_true", help="small models on the processor: figures say nothing")
    given = parser.parse_args(words)
    results = given.folder / "end-to-end.json"
    try:
        given.folder.mkdir(parents=True, exist_ok=True)
        document = earlier(results)
    except (EndToEndError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        return 1
    for name in [name for name in SIZES if name not in document]:
        try:
            document[name] = validated(name, given)
            write_whole(results, json.dumps({"rehearsal": given.rehearse, "models": document}, indent=1).encode())
        except (EndToEndError, OSError) as error:
            click.echo(f"error: {error}", err=True)
    click.echo("\n".join(lines_of(document)))
    if SIZES.keys() - document.keys():
        return 1
    return 0 if given.rehearse or reached(document) else 3


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("error: interrupted; models that are measured stay, the next call goes on")
