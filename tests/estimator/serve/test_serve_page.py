"""The page's markup: named controls, nothing from elsewhere, a table beside every chart."""

from estimator.serve.server import STATIC
from tests.fitter.page import Page

PAGE = Page((STATIC / "index.html").read_text())


def test_every_control_has_a_label_of_its_own():
    assert PAGE.open == []
    labelled = [label["for"] for label in PAGE.all("label")]
    controls = [control["id"] for kind in ("input", "select", "textarea") for control in PAGE.all(kind)]
    assert sorted(labelled) == sorted(controls)
    assert len(controls) == 21


def test_names_are_unique_and_what_is_pointed_at_is_there():
    names = PAGE.having("id")
    assert len(names) == len(set(names))
    pointed = [word for pointer in ("for", "aria-describedby", "aria-labelledby") for text in PAGE.having(pointer) for word in text.split()]
    assert {*pointed, *(link[1:] for link in PAGE.having("href") if link.startswith("#"))} <= set(names)
