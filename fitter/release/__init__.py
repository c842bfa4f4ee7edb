"""Release of bundles: versions, signatures, and the effect of changes."""
