"""Bundles side by side: what tells those of one name and version apart."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from estimator.bundles.content import Bundle

SHOWN_DIGITS: Final = 8
"""Characters of a digest that are shown."""


def told_apart(bundles: Sequence[Bundle], given: Sequence[str] = ()) -> list[Bundle]:
    """The bundles; where different ones bear one name and version, that is followed by what was given for each, else by its digest.

    given: names or files by which they were asked for, as many as bundles, or none.
    """
    digests: dict[tuple[str, str], set[str]] = {}
    for bundle in bundles:
        digests.setdefault((bundle.name, bundle.version), set()).add(bundle.digest)
    words = given or [bundle.digest.removeprefix("sha256:")[:SHOWN_DIGITS] for bundle in bundles]
    return [
        replace(bundle, version=f"{bundle.version} ({word})") if word and len(digests[bundle.name, bundle.version]) > 1 else bundle
        for bundle, word in zip(bundles, words, strict=True)
    ]
