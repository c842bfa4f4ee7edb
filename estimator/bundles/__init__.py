"""Bundles: what a calibration holds, as files and as plain data."""
