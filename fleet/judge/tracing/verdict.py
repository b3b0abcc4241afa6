"""What a localisation does to a verdict: it names the culprit, and the layer when it can.

A trace never turns a FAIL into anything else, and agreement of traced replays proves nothing about
untraced ones. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from fleet.contract.model import Require
from fleet.judge.stages import layer_words
from fleet.judge.tracing.culprit import Culprit, Localisation
from fleet.judge.verdict import Verdict

NOT_LOCALISED = "traced and not localised: the fault did not show in"


def layers_of(culprit: Culprit) -> tuple[int, ...]:
    """Candidate layers of a culprit; one when it is known.

    A module, or code between modules, that gave other outputs for equal inputs is layer 3. Weights
    that differ when loading ends, from one checkpoint, are a load-time kernel (3); weights that
    changed later are the machine's (5).
    """
    if culprit.kind == "weights":
        return (3,) if culprit.classes and not culprit.digests else (5,)
    if culprit.kind == "input":
        return (1,) if culprit.step == 0 else (2,)
    if culprit.kind == "cache":
        return (2, 3)
    if culprit.kind in ("structure", "batch_shape", "heterogeneity"):
        return (2,)
    return (3,)


def with_culprit(verdict: Verdict, found: Localisation) -> Verdict:
    """A FAIL with what its trace found. The layer moves only where logits were the first to differ
    and the culprit reaches them; other verdicts stay as they are."""
    if verdict.verdict != "FAIL":
        return verdict
    culprit = found.culprit
    if culprit is None:
        words = f"{NOT_LOCALISED} {len(found.attempts)} traced replays"
        return replace(verdict, warnings=(*verdict.warnings, words))
    named = replace(verdict, culprit=culprit.to_json(), fault=culprit.kind)
    healed = not verdict.stages and verdict.first_broken_grade == "modules"
    reached = next(iter(verdict.stages), None) == "logits" and culprit.survives_to_logits
    if not healed and not reached:
        return named
    layers = layers_of(culprit)
    layer = layers[0] if len(layers) == 1 else None
    told = layer_words(verdict.layer, verdict.layers)
    reason = verdict.reason.replace(f"FAIL({told})", f"FAIL({layer_words(layer, layers)})", 1)
    return replace(named, layer=layer, layers=layers, reason=reason)


def of_trace(
    contract: str,
    execution_id: str,
    platform: str,
    campaign: str,
    require: Require,
    found: Localisation | None,
) -> Verdict:
    """A verdict on traced replays alone, for a control that must show what the tracer can do."""
    blank = Verdict(
        contract=contract,
        execution_id=execution_id,
        platform=platform,
        verdict="VOID",
        state="VOID",
        required_grade=require.grade,
        scope=require.scope,
        reason="VOID(missing-evidence): fewer than two traced replays",
        code="missing-evidence",
        traced=True,
        campaign=campaign,
    )
    if found is None:
        return blank
    if found.culprit is None:
        words = f"VOID(missing-evidence): {NOT_LOCALISED} {len(found.attempts)} traced replays"
        return replace(blank, reason=words)
    layers = layers_of(found.culprit)
    layer = layers[0] if len(layers) == 1 else None
    return replace(
        blank,
        verdict="FAIL",
        state="FAIL",
        code=None,
        layer=layer,
        layers=layers,
        reason=f"FAIL({layer_words(layer, layers)}): {found.culprit.words}",
        first_broken_grade="modules",
        culprit=found.culprit.to_json(),
        fault=found.culprit.kind,
    )
