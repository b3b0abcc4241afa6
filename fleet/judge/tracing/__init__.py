"""From traces to a culprit: the first place with the same input and a different output.

Everything observed in a step has one order in time, so the first observation that differs decides:
the end of a call accuses that call (everything inside it agreed), its beginning accuses what ran
since the observation before it. Nothing later can be the first cause.
"""
