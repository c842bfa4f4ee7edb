"""The page about generated kernels says what the catalogue holds."""

import re
from collections import Counter
from pathlib import Path

from microbench.families import HOST_LOADS, KERNELS


def test_the_page_names_every_family_with_its_module_level_and_number_of_kernels(repository: Path) -> None:
    text = (repository / "docs" / "microbenchmarks.md").read_text(encoding="utf-8")
    catalogue = text.split("\n## Catalogue\n")[1]
    rows = re.findall(r"^\| (\w+) \| (\w+) \| (.*) \|$", catalogue, re.MULTILINE)
    stated = {
        (module, level, family): int(number or 1)
        for module, level, families in rows
        for family, number in re.findall(r"`(\w+)`(?: ×(\d+))?", families)
    }
    counted = Counter((kernel.module, kernel.level, kernel.family) for kernel in KERNELS)
    assert stated == dict(counted)
    assert f"{len(KERNELS)} kernels in {len(counted)} families" in text
    assert all(f"`{load.name}`" in text for load in HOST_LOADS)
