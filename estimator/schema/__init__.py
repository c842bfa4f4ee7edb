"""JSON Schemas of the files that this distribution writes, one per format and major version."""
