"""The calibration: turns measured rows into a bundle of coefficients with stated errors."""
