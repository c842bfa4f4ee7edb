"""The page's markup: named controls, nothing from elsewhere, a table beside every chart."""

import pytest

from estimator.serve.server import STATIC
from tests.fitter.page import Page


@pytest.fixture(scope="module")
def page():
    return Page((STATIC / "index.html").read_text(encoding="utf-8"))


def test_every_control_has_a_label_of_its_own(page):
    assert page.open == []
    labelled = [label["for"] for label in page.all("label")]
    controls = [control["id"] for kind in ("input", "select", "textarea") for control in page.all(kind)]
    assert sorted(labelled) == sorted(controls)
    assert len(controls) == 21


def test_names_are_unique_and_what_is_pointed_at_is_there(page):
    names = page.having("id")
    assert len(names) == len(set(names))
    pointed = [word for pointer in ("for", "aria-describedby", "aria-labelledby") for text in page.having(pointer) for word in text.split()]
    assert {*pointed, *(link[1:] for link in page.having("href") if link.startswith("#"))} <= set(names)
