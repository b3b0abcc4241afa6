"""Verdict rules, and their one owner: summaries in, verdicts out. Pure; reads no file and no clock.

``RULE_VERSION`` rises whenever the same evidence could get another verdict or another layer.
"""

RULE_VERSION = 1
