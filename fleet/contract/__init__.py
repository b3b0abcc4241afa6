"""What a run promises. Pure: standard library and pydantic; no torch, ray or duckdb."""
