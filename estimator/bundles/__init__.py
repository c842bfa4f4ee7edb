"""Bundles: what a calibration holds, as files, as plain data, and of older formats."""
