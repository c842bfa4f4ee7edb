"""ElmorLabs PMD: an external power meter in a board's supply lines, live, recorded and emulated."""
