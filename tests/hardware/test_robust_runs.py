"""A lent card's minutes are not lost to one kernel that breaks the context."""

import os
import subprocess
import sys
from pathlib import Path

CONFIGURATION = "[pytest]\nmarkers =\n    gpu: x\n"
KILLING = """
import pytest
from microbench.errors import DeviceLostError

LOST = []

@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["good", "bad", "late"])
def test_it(kernel):
    if kernel == "bad":
        LOST.append(kernel)
    if LOST:
        raise DeviceLostError("illegal address")
"""


def run(folder: Path, text: str, repository: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    (folder / "pytest.ini").write_text(CONFIGURATION, encoding="utf-8")
    known = {**os.environ, "PYTHONPATH": str(repository), **environment}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", str(folder)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=known)


def test_a_test_that_breaks_the_context_ends_the_run_and_is_passed_over_by_the_next(tmp_path: Path, repository: Path) -> None:
    killers = tmp_path / "killers.txt"
    first = run(tmp_path, KILLING, repository, WATTPRINT_KILLERS=str(killers))
    assert first.returncode != 0
    assert "1 failed, 1 passed" in first.stdout
    assert "broke the context" in first.stdout
    assert killers.read_text(encoding="utf-8").splitlines() == ["test_it.py::test_it[bad]"]
    second = run(tmp_path, KILLING, repository, WATTPRINT_KILLERS=str(killers))
    assert second.returncode == 0, second.stdout
    assert "2 passed, 1 skipped" in second.stdout
    assert "it broke the context in a run before" in second.stdout
