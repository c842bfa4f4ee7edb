"""The clock helper: a small privileged process that holds SM clocks for users without the right, and its client."""
