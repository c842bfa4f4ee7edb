"""The page about generated kernels says what the catalogue holds."""

from pathlib import Path

from microbench.families import HOST_LOADS, KERNELS


def test_the_page_names_every_family_with_its_module_level_and_number_of_kernels(repository: Path) -> None:
    text = (repository / "docs" / "microbenchmarks.md").read_text(encoding="utf-8")
    table = [line.strip("| ").split(" | ") for line in text.split("\n## Catalogue\n")[1].splitlines() if line.startswith("| `")]
    families: dict[str, list[str]] = {}
    for kernel in KERNELS:
        row = families.setdefault(kernel.family, [kernel.module, kernel.level, "0"])
        row[2] = str(int(row[2]) + 1)
    assert {cells[0].strip("`"): cells[2:5] for cells in table} == families
    assert f"{len(KERNELS)} kernels in {len(families)} families" in text
    assert all(f"`{load.name}`" in text for load in HOST_LOADS)
