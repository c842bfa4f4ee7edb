"""A local web page for estimates: what can be chosen, answers as JSON, and the server that hands both to a browser."""
