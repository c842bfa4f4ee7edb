"""The calibration: from measured rows to a bundle of coefficients, with what it is worth."""
