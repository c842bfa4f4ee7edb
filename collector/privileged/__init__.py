"""The clock helper: a small privileged process that holds SM clocks on behalf of users who may not, and its client."""
