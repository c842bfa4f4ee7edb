"""Recording and playback of the hardware edge: every run on a real board becomes a test."""
