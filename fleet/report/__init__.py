"""Answers for people and programs: what the judge says of what the store holds."""
