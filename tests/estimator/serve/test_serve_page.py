"""The page's markup: named controls, nothing from elsewhere, a table beside every chart."""

from html.parser import HTMLParser

import pytest

from estimator.serve.server import STATIC

VOID = {"meta", "link", "input"}


class Markup(HTMLParser):
    """Elements in their order with what encloses them; complains where tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], tuple[str, ...]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}, tuple(self._open)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def of(self, *tags):
        return [attributes for tag, attributes, _ in self.elements if tag in tags]


@pytest.fixture(scope="module")
def page():
    return Markup((STATIC / "index.html").read_text(encoding="utf-8"))


def test_every_control_has_a_label_of_its_own(page):
    labelled = [label["for"] for label in page.of("label")]
    controls = [control["id"] for control in page.of("input", "select", "textarea")]
    assert sorted(labelled) == sorted(controls)
    assert len(controls) == 21


def test_names_are_unique_and_what_is_pointed_at_is_there(page):
    names = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for _, attributes, _ in page.elements:
        for pointer in ("for", "aria-describedby", "aria-labelledby"):
            assert set(attributes.get(pointer, "").split()) <= set(names), attributes
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in names
