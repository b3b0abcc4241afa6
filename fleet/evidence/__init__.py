"""What a run leaves behind. Pure: standard library and pyarrow; no torch, ray or duckdb.

Digests take ``(dtype, shape, buffer)``, never a tensor.
"""
