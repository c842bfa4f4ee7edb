"""Bundles with a right digest and a wrong value: every command refuses them in one line or answers as sanely as ever.

Every value and every table of the golden bundles is changed in every way a careless or hostile hand might; a fixed sample of
these is tried in each run, MUTATIONS=all tries all of them (minutes).
"""

import contextlib
import copy
import io
import json
import math
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema

import estimator.commands.estimate
import estimator.schema
import fitter.commands.fit
from estimator.bundle.files import digest_of, load_bundle
from estimator.vocabulary.errors import BundleError

REPOSITORY = Path(__file__).resolve().parents[1]
GOLDEN = sorted((REPOSITORY / "tests" / "golden" / "bundles").glob("*.json"))
WORKLOAD = REPOSITORY / "examples" / "llama-8b-decode.json"
SCHEMA = json.loads((Path(estimator.schema.__path__[0]) / "bundle-1.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

SAMPLE = 220
"""Mutations in a run: about 8 s."""

LONG_COLUMN = 4
"""Of a longer list the first and the last entries are changed: the others are read by the same line."""

ROWS = """family,operator,gpu,precision,batch,m,n,k,latency_s
gemm,linear,a100-pcie-40gb,bf16,1,512,1024,512,7.3e-06
gemm,linear,a100-pcie-40gb,bf16,1,1024,1024,512,9.3e-06
gemm,linear,a100-pcie-40gb,bf16,1,2048,1024,512,1.3e-05
"""

NO_NUMBER = re.compile(r"(?<![\w\"])-?(nan|inf)(inity)?(?![\w\"])", re.IGNORECASE)
"""A number that is none, as programs write it; texts of a bundle stand in quotes."""

Place = tuple[str | int, ...]

FOREIGN = ("nan", "", "1e5", None, True, [], {}, 0, -1, 0.5, 1e300, -1e300, 5e-324, 10**400, [0.0] * 5000, [[1.0]], {"x": 1.0})
"""What a value is replaced by; numbers are also negated, and made a thousandfold and a thousandth."""


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """The keys of every value and of every table."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*at, key))
    elif isinstance(value, list):
        chosen = range(len(value)) if len(value) <= LONG_COLUMN else (0, len(value) - 1)
        for i in chosen:
            yield from places(value[i], (*at, i))


def found(document: Any, place: Place) -> Any:
    for key in place:
        document = document[key]
    return document


def mutations() -> list[tuple[Path, Place, Any]]:
    """Every bundle, place and new value."""
    known = []
    for path in GOLDEN:
        document = json.loads(path.read_text(encoding="utf-8"))
        for place in places(document):
            if place[0] in ("digest", "format", "format_version"):
                continue
            old = found(document, place)
            news = list(FOREIGN)
            if isinstance(old, int | float) and not isinstance(old, bool):
                news += [-old, old * 1000, old / 1000]
            known += [(path, place, new) for new in news]
    return known


def sampled() -> list[tuple[Path, Place, Any]]:
    known = mutations()
    return known if os.environ.get("MUTATIONS") == "all" else random.Random(7).sample(known, SAMPLE)


def written(folder: Path, path: Path, place: Place, new: Any) -> tuple[Path, dict[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    found(document, place[:-1])[place[-1]] = copy.deepcopy(new)
    document["digest"] = digest_of(document)
    target = folder / "changed.json"
    target.write_text(json.dumps(document), encoding="utf-8")
    return target, document


def run(command: Callable[[list[str]], int], words: list[str]) -> tuple[int, str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = command(words)
    return status, out.getvalue(), err.getvalue()


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


def check_answer(text: str) -> None:
    """An estimate is of positive, finite time, power and energy, with deviations that are known or null."""
    answer = json.loads(text)
    for quantity in ("latency_s", "power_w", "energy_j"):
        for part in (answer, *answer["kernels"]):
            assert part[quantity] is None or (math.isfinite(part[quantity]) and part[quantity] > 0), (quantity, part)
    assert answer["latency_s"] is not None
    assert all(math.isfinite(number) and number >= 0 for number in numbers(answer))


def check_refusal(status: int, out: str, err: str, bundle: Path) -> None:
    assert (status, out) == (1, ""), (status, out, err)
    assert err.count("\n") == 1, err
    assert str(bundle) in err, err


def complaints(folder: Path, path: Path, place: Place, new: Any) -> str:
    """What is wrong with how a changed bundle is met; nothing where all is well."""
    target, document = written(folder, path, place, new)
    name = str(target)
    try:
        load_bundle(target)
    except BundleError as error:
        accepted = False
        refusal = str(error)
        assert "\n" not in refusal
        assert name in refusal
    else:
        accepted = True
        refusal = ""
        faults = [error.message[:80] for error in VALIDATOR.iter_errors(document)]
        assert not faults, f"the schema refuses what is read: {faults}"
    status, out, err = run(estimator.commands.estimate.run, [str(WORKLOAD), "--bundle", name, "--json", "--kernels", "all"])
    if status == 1 or not accepted:
        check_refusal(status, out, err, target) if not accepted else check_one_line(status, out, err)
        if not accepted:
            return refusal
    else:
        check_answer(out)
    for words in (
        ["show", name],
        ["show", name, "--json"],
        ["diff", str(path), name, "--json"],
        ["check", name, str(folder / "rows.csv"), "--json"],
    ):
        status, out, err = run(fitter.commands.fit.run, words)
        if status == 1:
            check_one_line(status, out, err)
        else:
            assert status in (0, 3), (words, status, err)
            assert isinstance(new, str) or not NO_NUMBER.search(out), out
            if "--json" in words:
                json.loads(out)
    return ""


def check_one_line(status: int, out: str, err: str) -> None:
    assert (status, out, err.count("\n")) == (1, "", 1), (status, out[:200], err)


def test_a_changed_bundle_is_refused_in_one_line_or_answers_sanely(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    wrong = []
    for path, place, new in sampled():
        try:
            complaints(tmp_path, path, place, new)
        except Exception as error:  # noqa: BLE001  # every way to fail is what is looked for
            wrong.append(f"{path.stem} {'.'.join(map(str, place))} = {str(new)[:40]}: {type(error).__name__} {str(error)[:300]}")
    assert not wrong, f"{len(wrong)} of {len(sampled())}:\n" + "\n".join(wrong[:200])
