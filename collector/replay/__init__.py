"""Recording what crosses the hardware edge, and playing it back: every run on a real board becomes a test."""
