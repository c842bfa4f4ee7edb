"""Warnings and notes for people: each once, with whom it concerns, however many points of a question it holds for."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from estimator.display.estimates import printable
from estimator.questions.points import LABELS, Case
from estimator.short_names import short_name

Labels = tuple[Any, ...]
"""What tells who a remark concerns from others: as LABELS, or the name of a workload alone."""

NUMBER: Final = re.compile(r"(?<![\w.])(?:\d+(?:x\d+)+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.]*\w)")
"""A number, or the shape of an operator ("64x512"), that is a word by itself: not those of "fp8" and "h100"."""

NAMING_ORDER: Final = ("batch", "sequence", "precision", "attention", "gpu", "bundle", "workload")
"""Labels by which those whom a remark concerns are named, those first that are named rather than others."""

MOST_LINES: Final = 40
"""Warnings, and notes, that are shown."""

MORE: Final = "and {} more like these; fewer workloads or sizes at a time show them"
"""Stands in place of the last lines."""

MOST_NAMED: Final = 6
"""Names in one line."""


def case_labels(case: Case) -> Labels:
    """LABELS of a case of a sweep."""
    return tuple(getattr(case, name) for name in LABELS)


def remark_lines(remarks: Iterable[tuple[Labels, str]], everyone: Iterable[Labels]) -> list[str]:
    """One line for each remark that starts with whom of `everyone` it concerns; of more than MOST_LINES the last says how many more.

    Remarks on one board that differ in numbers alone are one, with the range of each number.
    """
    alike: dict[tuple[Any, ...], tuple[dict[str, None], dict[Labels, None]]] = {}
    for labels, text in remarks:
        texts, concerned = alike.setdefault((labels[1:3], NUMBER.sub(_kind, text)), ({}, {}))
        texts[text] = concerned[labels] = None
    said: dict[str, dict[Labels, None]] = {}
    for texts, concerned in alike.values():
        said.setdefault(_merged(list(texts)), {}).update(concerned)
    every = list(dict.fromkeys(everyone))
    shown = len(said) if len(said) <= MOST_LINES else MOST_LINES - 1
    lines = [printable(f"{_who(set(concerned), every)}: {text}") for text, concerned in list(said.items())[:shown]]
    return lines if shown == len(said) else [*lines, MORE.format(len(said) - shown)]


def _kind(number: re.Match[str]) -> str:
    """What a number leaves of a text: shapes of different rank are different."""
    return re.sub(r"\d+", "#", number.group()) if "x" in number.group() else "#"


def _merged(texts: Sequence[str]) -> str:
    """Texts that differ in numbers alone as one."""
    numbers = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    ranges = iter([_range(found) for found in numbers])
    return NUMBER.sub(lambda _: next(ranges), texts[0])


def _range(numbers: Sequence[str]) -> str:
    """The lowest and the highest of numbers, or of each axis of shapes."""
    if "x" in numbers[0]:
        return "x".join(_range(axis) for axis in zip(*(shape.split("x") for shape in numbers), strict=True))
    low, high = min(numbers, key=float), max(numbers, key=float)
    return low if float(low) == float(high) else f"{low}–{high}"


def _who(concerned: set[Labels], everyone: Sequence[Labels]) -> str:
    if concerned.issuperset(everyone):
        names = {labels[0] for labels in everyone}
        return short_name(names.pop()) if len(names) == 1 else "both" if len(everyone) == 2 else f"all {len(everyone)}"
    sets = _telling_sets(concerned, everyone) if len(everyone[0]) == len(LABELS) else {}
    if sets:
        named = ((name, _listed([short_name(str(value)) for value in values])) for name, values in sets.items())
        return " and ".join(text if name == "workload" else f"{name} {text}" for name, text in named)
    return _listed([_own_name(labels, everyone) for labels in everyone if labels in concerned])


def _telling_sets(concerned: set[Labels], everyone: Sequence[Labels]) -> dict[str, list[Any]]:
    """Values by label that no others of `everyone` share, of as few labels as possible; none where no such product is all concerned."""
    own = [labels for labels in everyone if labels in concerned]
    sets = {name: list(dict.fromkeys(labels[LABELS.index(name)] for labels in own)) for name in NAMING_ORDER}
    sets = {name: values for name, values in sets.items() if all(values)}
    if not _tell(sets, own, everyone):
        return {}
    for name in reversed(NAMING_ORDER):
        fewer = {other: values for other, values in sets.items() if other != name}
        if _tell(fewer, own, everyone):
            sets = fewer
    return sets


def _tell(sets: Mapping[str, Sequence[Any]], own: Sequence[Labels], everyone: Sequence[Labels]) -> bool:
    """Whether exactly `own` have one of these values in each of these labels."""
    chosen = (labels for labels in everyone if all(labels[LABELS.index(name)] in values for name, values in sets.items()))
    return sum(1 for _ in chosen) == len(own)


def _own_name(labels: Labels, everyone: Sequence[Labels]) -> str:
    """All that tells one from the others."""
    telling = [i for i, value in enumerate(labels) if value and any(other[i] != value for other in everyone)]
    return " ".join(short_name(str(labels[i])) for i in telling) or short_name(str(labels[0]))


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
