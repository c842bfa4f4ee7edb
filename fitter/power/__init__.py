"""Power: energy per event, static terms and voltage, and how well they are known."""
