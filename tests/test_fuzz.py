"""A short run of the fuzz program: changed files of every kind are answered or refused in one line."""

from tests.fuzz.examples import EXAMPLES
from tests.fuzz.mutate import MOST_BYTES, fuzz

SEED, COUNT = 7, 10 * len(EXAMPLES)


def test_changed_files_of_every_kind_are_answered_or_refused_in_one_line():
    found, ran, peak_bytes = fuzz(sorted(EXAMPLES), COUNT, SEED)
    assert not found, f"python -m tests.fuzz.mutate --seed {SEED} --kind KIND --case NUMBER runs one again"
    assert ran == COUNT
    assert peak_bytes < MOST_BYTES
