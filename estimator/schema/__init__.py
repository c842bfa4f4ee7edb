"""JSON Schemas that `scripts/schemas.py` makes from the declarations of `estimator.vocabulary.reader`."""
