"""Certify, with evidence, where LLM inference is bitwise reproducible."""

__version__ = "0.1.0"
