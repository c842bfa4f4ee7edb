"""Answers for people and programs: tables, JSON, CSV, Parquet, charts and pages."""
