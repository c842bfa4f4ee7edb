"""JSON Schemas, made from the declarations that `estimator.vocabulary.reader` reads by: `scripts/schemas.py`."""
