"""A report as a reader without eyes, and one who counts contrast, has it."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input"}


class Page(HTMLParser):
    """Tags of a page in order, checked to be balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        identity = next((str(attributes["id"]) for _, attributes in self.tags[-1:] if attributes.get("id")), "")
        if identity:
            self.words[identity] = self.words.get(identity, "") + data

    def having(self, attribute: str) -> list[str]:
        """Values of an attribute in order."""
        return [str(attributes[attribute]) for _, attributes in self.tags if attributes.get(attribute) is not None]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Attributes of every tag of a name."""
        return [attributes for name, attributes in self.tags if name == tag]


def style_of(page: str) -> str:
    """The page's style sheet."""
    found = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert found is not None
    return found[1]


def colours(style: str, *, dark: bool) -> dict[str, tuple[float, float, float]]:
    """The page's colour variables."""
    night = re.search(r"@media\(prefers-color-scheme:dark\)\{:root\{(.*?)\}\}", style, re.DOTALL)
    day = re.search(r"^:root\{(.*?)\}", style.strip(), re.DOTALL)
    assert night is not None
    assert day is not None
    found = dict(re.findall(r"--([a-z0-9]+):(#[0-9a-f]{3,6})", day[1]))
    if dark:
        found |= dict(re.findall(r"--([a-z0-9]+):(#[0-9a-f]{3,6})", night[1]))
    return {name: _rgb(text) for name, text in found.items()}


def _rgb(text: str) -> tuple[float, float, float]:
    digits = text[1:] if len(text) == 7 else "".join(2 * c for c in text[1:])
    red, green, blue = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return red, green, blue


def over(front: tuple[float, float, float], back: tuple[float, float, float], opacity: float) -> tuple[float, float, float]:
    """A colour that lets some of what lies behind it through."""
    red, green, blue = (opacity * a + (1 - opacity) * b for a, b in zip(front, back, strict=True))
    return red, green, blue


def contrast(first: tuple[float, float, float], second: tuple[float, float, float]) -> float:
    """Contrast of two colours, 1 to 21.  Source: WCAG 2.2, definitions of contrast ratio and relative luminance."""

    def luminance(colour: tuple[float, float, float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)
