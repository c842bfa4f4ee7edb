"""The energy of any program."""
