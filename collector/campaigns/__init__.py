"""Campaigns: what is measured, in which order, how often, and what becomes of each run."""
