"""Laws about the repository itself: what may be imported, what is shipped, what stays out of tracked files."""

import re
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests.processes import ended

EXTRAS = {"fit", "collect", "cuda12", "cuda13", "torch", "cluster", "serve", "sign", "all"}
"""Extras that users may rely on."""

# Import names of everything optional, by the extra that brings it.
OPTIONAL_MODULES = {
    "collect": ("pynvml", "pyarrow", "serial"),
    "fit": ("pandas", "pyarrow", "scipy", "sklearn", "joblib"),
    "cuda": ("cupy", "cupti", "cuda"),
    "torch": ("torch", "transformers"),
    "cluster": ("distributed", "dask"),
    "serve": ("uvicorn",),
    "sign": ("cryptography",),
}
ALL_OPTIONAL = sorted({name for names in OPTIONAL_MODULES.values() for name in names})

HIDE = """
import sys

class Hiding:
    def __init__(self, finders, names):
        self.finders = finders
        self.names = frozenset(names)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            return None
        found = (finder.find_spec(name, path, target) for finder in self.finders)
        return next((spec for spec in found if spec is not None), None)

sys.meta_path[:] = [Hiding(list(sys.meta_path), %r)]
"""
"""Code that makes packages look as if they were not installed."""


def python(code, repository, *arguments):
    """Runs code in a fresh interpreter at the root of the repository."""
    return ended(sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments, cwd=repository)


@pytest.fixture(scope="module")
def project(repository):
    """The `project` and `tool` tables of pyproject.toml."""
    return tomllib.loads((repository / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def tracked_files(repository):
    """Text files under version control, or that would be."""
    listing = ended("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=repository)
    if listing.returncode != 0:
        pytest.skip("not a git work tree")
    files = [repository / name for name in listing.stdout.splitlines()]
    return [file for file in files if file.is_file() and b"\0" not in file.read_bytes()[:8192]]


def test_estimator_imports_with_everything_but_numpy_and_click_hidden(repository):
    files = sorted((repository / "estimator").rglob("*.py"))
    names = [".".join(file.relative_to(repository).with_suffix("").parts).removesuffix(".__init__") for file in files]
    modules = [name for name in names if not name.endswith("__main__")]
    done = python(HIDE % (ALL_OPTIONAL,) + "\n".join(f"import {name}" for name in modules), repository)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module, extra, arguments",
    [
        ("collector.cli", "collect", ["--gpu", "sim:a100-pcie-40gb", "--freqs", "900", "--out", "unwritten.parquet"]),
        ("fitter.cli", "fit", ["rows.csv", "-o", "unwritten.json"]),
    ],
)
def test_command_without_its_extra_says_which_to_install(module, extra, arguments, repository, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("family,operator,gpu,precision,rows,dim,latency_s\nsoftmax,softmax,a10,fp32,128,128,1e-5\n")
    arguments = [str(tmp_path / word) if word.endswith((".csv", ".parquet", ".json")) else word for word in arguments]
    code = HIDE % (ALL_OPTIONAL,) + f"import {module} as cli\nsys.argv[0] = {module!r}\nsys.exit(cli.main())\n"
    done = python(code, repository, *arguments)
    assert done.returncode == 1, done.stderr
    assert f"wattprint[{extra}]" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [rows]


@pytest.mark.parametrize(
    "module, word",
    [("collector.cli", "--help"), ("fitter.cli", "--help"), ("estimator.cli", "--help"), ("collector.cli", "devices")],
)
def test_help_and_the_list_of_boards_need_no_extra(module, word, repository):
    code = HIDE % (ALL_OPTIONAL,) + f"import {module} as cli\nsys.argv[0] = {module!r}\nsys.exit(cli.main())\n"
    done = python(code, repository, word)
    assert done.returncode == 0, done.stderr
    assert ("Usage:" if word == "--help" else "sim:") in done.stdout


def test_promised_extras_and_commands_exist(project):
    assert set(project["project"]["optional-dependencies"]) >= EXTRAS
    assert project["project"]["scripts"] == {
        "collect": "collector.cli:main",
        "fit": "fitter.cli:main",
        "estimate": "estimator.cli:main",
    }


def test_the_bare_distribution_needs_three_small_packages_alone(project):
    names = {re.split(r"[<>=!~\[; ]", requirement)[0] for requirement in project["project"]["dependencies"]}
    assert names == {"numpy", "click"}


def test_extra_all_needs_neither_gpu_nor_pytorch(project):
    extras = project["project"]["optional-dependencies"]

    def expand(extra):
        names = set()
        for requirement in extras[extra]:
            inner = re.fullmatch(r"wattprint\[(.+)\]", requirement)
            names |= set().union(*map(expand, inner[1].split(","))) if inner else {requirement}
        return names

    everything = expand("all")
    assert everything == set().union(*map(expand, ("collect", "fit", "cluster", "plots", "ptx", "serve", "sign")))
    assert not [name for name in everything if re.match(r"cupy|cupti|torch", name)]


def test_every_data_folder_is_shipped_inside_the_estimator(project, repository):
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {*shipped} == {"configs", "bundles", "examples"}
    for folder in shipped:
        assert any((repository / folder).rglob("*")), f"{folder} is empty: a clone would lack it and could not be built"


def test_version_has_an_entry_in_the_changelog(repository):
    import estimator

    assert re.fullmatch(r"\d+\.\d+\.\d+([.-]?(a|b|rc|dev)\d+)?", estimator.__version__)
    headings = re.findall(r"^## \[(.+?)\]", (repository / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0] == estimator.__version__
    released = [heading for heading in headings if heading != "Unreleased"]
    assert not released or released[0] == estimator.__version__


def test_no_tracked_file_names_a_path_of_one_machine(tracked_files, repository):
    home = re.compile(r"(?<![\w.~-])/(?:root|work|home/\w+|Users/\w+|farm|opt/\w+|tmp/\w+)(?=/|\b)")
    found = [
        f"{file.relative_to(repository)}:{number}: {line.strip()[:100]}"
        for file in tracked_files
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if home.search(line) and file.name != Path(__file__).name
    ]
    assert found == []


def test_tracked_files_are_utf8_with_unix_line_ends(tracked_files, repository):
    wrong = [file for file in tracked_files if b"\r\n" in file.read_bytes()]
    assert [str(file.relative_to(repository)) for file in wrong] == []


def test_links_between_pages_lead_somewhere(tracked_files, repository):
    broken = []
    for page in (file for file in tracked_files if file.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not target.startswith(("http://", "https://", "mailto:")) and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(repository)}: {target}")
    assert broken == []
