"""What a power sensor does to the power: update clock, averaging, delay, rise, gain and offset."""
