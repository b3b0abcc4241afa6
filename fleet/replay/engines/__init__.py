"""Engines, one file each. An engine sees neither ray nor duckdb, nor any other replay."""
