"""A report as a reader without eyes has it."""

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input"}


class Page(HTMLParser):
    """Tags of a page in order, checked to be balanced."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.open = []
        self.words = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        identity = next((str(attributes["id"]) for _, attributes in self.tags[-1:] if attributes.get("id")), "")
        if identity:
            self.words[identity] = self.words.get(identity, "") + data

    def having(self, attribute):
        """Values of an attribute in order."""
        return [str(attributes[attribute]) for _, attributes in self.tags if attributes.get(attribute) is not None]

    def all(self, tag):
        """Attributes of every tag of a name."""
        return [attributes for name, attributes in self.tags if name == tag]
