"""From what a sensor reported to what the board drew."""
