"""The one owner of verdict rules: summaries in, verdicts out. Pure: no torch, ray, duckdb or clock.

The laws, by the numbers that docstrings use:

1. *Differs* and *could not run* never share a word. A PASS needs every declared sample of every
   arm exactly once on both sides, and every field of the grade in every row.
2. Verdicts are pure functions of append-only evidence, never stored. Only FAILED and LOST are
   retried.
3. Rows of any attempt count: agreement from an attempt that is not good evidence never helps a
   PASS, a difference with equal inputs and settings always sticks.
4. No tolerance: comparisons are between digests or typed text, never floats, never NULL with NULL.
5. Requested is not effective: every setting is read back, after load, per batch and at the end.
6. Freshness is stored evidence.
7. Campaigns carry controls; one that misbehaves voids the campaign's PASSes, never its FAILs.
8. A PASS states its power and its envelope; outside the envelope is UNTESTED.
9. Two bounds, never one: per record within the set, and per process over the replays.
10. What cannot be established is said so; no cause is invented.
"""

RULE_VERSION = 1
"""Carried by every verdict; rises whenever the same evidence could get another verdict or layer."""
