"""The part of KubeRay's two resources that the manifests use, as a strict JSON schema.

Written by hand after the CRDs `ray.io_rayclusters` and `ray.io_rayjobs` of KubeRay (ray.io/v1, of
master 2026-08-19): names, types and enumerations of every key of both specs and of a group. Pods
are checked against Kubernetes' own schemas; what the operator itself refuses is said in the tests.
"""

from __future__ import annotations

from typing import Any

TEXT, FLAG, WHOLE, NUMBER = ({"type": t} for t in ("string", "boolean", "integer", "number"))
TEXTS = {"type": "object", "additionalProperties": TEXT}
ANY = {"type": "object"}


def record(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object that has no other keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


GROUP = {
    "rayStartParams": TEXTS,
    "labels": TEXTS,
    "resources": TEXTS,
    "template": record(("spec",), metadata=ANY, spec=ANY),
}
CLUSTER_SPEC = record(
    ("headGroupSpec",),
    rayVersion=TEXT,
    authOptions=record(
        enableK8sTokenAuth=FLAG, mode={"enum": ["disabled", "token"]}, secretName=TEXT
    ),
    autoscalerOptions=ANY,
    enableInTreeAutoscaling=FLAG,
    gcsFaultToleranceOptions=ANY,
    headServiceAnnotations=TEXTS,
    historyServerOptions=ANY,
    managedBy=TEXT,
    networkPolicy=ANY,
    suspend=FLAG,
    tlsOptions=record(enabled=FLAG),
    upgradeStrategy=record(type={"enum": ["Recreate", "None"]}),
    headGroupSpec=record(
        ("template",), enableIngress=FLAG, headService=ANY, ingressOptions=ANY, serviceType=TEXT,
        **GROUP,
    ),
    workerGroupSpecs={
        "type": "array",
        "items": record(
            ("groupName", "template"), groupName=TEXT, replicas=WHOLE, minReplicas=WHOLE,
            maxReplicas=WHOLE, numOfHosts=WHOLE, idleTimeoutSeconds=WHOLE, priority=WHOLE,
            suspend=FLAG, scaleStrategy=ANY, **GROUP,
        ),
    },
)  # fmt: skip
JOB_SPEC = record(
    ("entrypoint", "rayClusterSpec"),
    activeDeadlineSeconds=WHOLE,
    backoffLimit=WHOLE,
    clusterSelector=TEXTS,
    deletionStrategy=ANY,
    entrypoint=TEXT,
    entrypointNumCpus=NUMBER,
    entrypointNumGpus=NUMBER,
    entrypointResources=TEXT,
    jobId=TEXT,
    managedBy=TEXT,
    metadata=TEXTS,
    preRunningDeadlineSeconds={"type": "integer", "minimum": 1},
    rayClusterSpec=CLUSTER_SPEC,
    runtimeEnvYAML=TEXT,
    shutdownAfterJobFinishes=FLAG,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    submitterConfig=record(backoffLimit=WHOLE),
    submitterPodTemplate=ANY,
    suspend=FLAG,
    ttlSecondsAfterFinished=WHOLE,
)
SCHEMAS = {
    kind: record(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "ray.io/v1"},
        kind={"const": kind},
        metadata=ANY,
        spec=spec,
    )
    for kind, spec in {"RayCluster": CLUSTER_SPEC, "RayJob": JOB_SPEC}.items()
}
