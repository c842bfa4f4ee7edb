"""Energy of a launch and of whatever repeats, with its error."""
