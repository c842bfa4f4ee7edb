"""The local page: its answers, its limits, its markup, its command, and its behaviour in a browser."""
