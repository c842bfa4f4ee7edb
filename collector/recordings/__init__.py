"""Recorded logs as values: polled readings, load stamps, an external meter's power; one time base in seconds."""
