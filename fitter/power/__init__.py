"""Power: energy per event, static terms and voltage, with their uncertainty."""
