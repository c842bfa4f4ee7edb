"""A local web page for estimates: choices, answers as JSON, and the server that sends both to a browser."""
