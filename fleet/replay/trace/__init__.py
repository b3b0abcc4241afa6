"""Hooks, frozen calls and operations: what a traced replay does beside generating."""
