"""The store: landing -> DuckDB. The only importer of duckdb; no torch, no ray.

Derived data: dropping the file and building it again from the landing gives equal summaries.
"""
