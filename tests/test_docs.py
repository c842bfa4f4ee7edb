"""Reference pages say what the code says."""

import csv
import re
import shlex
import shutil
import tomllib
from dataclasses import fields

import pytest

from collector.campaigns.files import CampaignSpec, MeasurementSettings, campaign_from_document
from collector.dataset.schema import SCHEMA_VERSION
from estimator.bundle.content import FORMAT_VERSION as BUNDLE_VERSION
from estimator.cli import main as estimate
from estimator.formats.own import FORMAT_VERSION as WORKLOAD_VERSION
from estimator.vocabulary.quantities import MODULES
from estimator.vocabulary.workload import FAMILY_FIELDS
from scripts import constants, schemas
from tests.conftest import REPOSITORY


def page_text(name):
    return (REPOSITORY / "docs" / name).read_text()


def test_the_table_of_columns_and_flags_is_that_of_the_code():
    assert page_text("dataset-columns.csv") == schemas.columns_table(), "run scripts/schemas.py"


def test_format_pages_name_the_version_that_is_written():
    assert f"Schema version: {SCHEMA_VERSION};" in page_text("dataset-format.md")
    assert f'`"{BUNDLE_VERSION}"`' in page_text("bundle-format.md")
    assert f"version {WORKLOAD_VERSION}" in page_text("workload-format.md")


def test_glossary_names_every_family_and_module():
    glossary = page_text("glossary.md")
    missing = [name for name in (*FAMILY_FIELDS, *MODULES) if f"`{name}`" not in glossary]
    assert missing == []


def test_the_campaign_on_its_page_is_one():
    page = page_text("campaign-files.md")
    text = page.split("```toml\n")[1].split("```")[0]
    spec = campaign_from_document({"name": "mine", **tomllib.loads(text)}, "docs/campaign-files.md")
    assert [group.operator for group in spec.kernels] == ["linear", "layernorm"]
    for field in (*fields(CampaignSpec), *fields(MeasurementSettings)):
        assert field.name in {"name", "digest"} or field.name in page, f"{field.name} is not on the page"


LISTS = {"gpt2_b8_s512.json": "gpt2model_gpt2_pbf16_b8_s512_modeprefill.json", "resnet101_b8.json": "*resnet101*_b8_*.json"}
"""Operator lists of the artifact under the names that pages give them."""


def words_of(line):
    """The words of a line of output; numbers, which change with every fit, count alike."""
    return [re.sub(r"[-+]?\d[\d.,e+-]*", "#", word) for word in line.split()]


@pytest.mark.parametrize("page, shown", [("ask-questions.md", 4), ("explain.md", 1)])
def test_what_a_page_shows_of_a_command_is_what_it_prints(
    shared_data,
    tmp_path,
    monkeypatch,
    capsys,
    page,
    shown,
):
    for name, pattern in LISTS.items():
        shutil.copy(next((shared_data / "energaizer" / "workloads").glob(pattern)), tmp_path / name)
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```text\n\$ estimate (.*?)\n(.*?)```", page_text(f"how-to/{page}"), re.DOTALL)
    assert len(blocks) == shown
    for command, output in blocks:
        assert estimate([*shlex.split(command), "-q"]) in (0, 3)
        printed = iter([words_of(line) for line in capsys.readouterr().out.splitlines()])
        for line in output.splitlines():
            assert line.strip() == "…" or words_of(line) in printed, f"{command}: {line}"


def test_the_table_of_constants_is_that_of_the_code_and_explains_each():
    assert page_text("constants.csv") == constants.table()
    rows = list(csv.reader(constants.table().splitlines()))
    assert len(rows) > 100
    assert [row[:2] for row in rows if not row[3]] == []
