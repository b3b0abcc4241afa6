"""Replays in a container image: what of the node they see, and how an image is asked.

Ray starts a worker in a container by podman and gives it the folder of its session and nothing else
of the node (its ``container`` field; ``image_uri`` takes no options). A replay reads what its task
names and lands where the driver looks, so those folders are mounted under their own names; fleet
comes with the driver. Knows no cluster.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fleet
from fleet.errors import UsageError
from fleet.replay.task import ReplayTask

MACHINE_ID = Path("/etc/machine-id")
"""Names the unit; an image has none, or that of the machine on which it was made."""

SOURCE = "/opt/fleet-of-the-driver"
"""Where an image finds the package fleet."""

AS_WHOEVER_STARTED_RAY = "--user $(id -u):$(id -g)"
"""An image may name a user of its own, who cannot reach Ray's sockets. Ray hands options to a shell
of the node."""

VARIABLES = {
    "PYTHONPATH": SOURCE,
    # A process's title is written over the variables that it was given, which are evidence, unless
    # this says not to; Ray sets it for every worker but not in containers. setproctitle, README.
    "SPT_NOENV": "1",
}
"""What a process in a container is given beside its own variables."""


def container(image: str, tasks: Sequence[ReplayTask]) -> dict[str, Any]:
    """The ``container`` of a runtime environment: the image, and the folders of these tasks."""
    written = dict.fromkeys(_made(f for t in tasks for f in (t.landing, t.scratch)))
    read = dict.fromkeys(folder for t in tasks for folder in t.reads())
    mounts = [_mount(MACHINE_ID, how=":ro")] if MACHINE_ID.exists() else []
    mounts += [_mount(folder) for folder in written]
    mounts += [_mount(folder, how=":ro") for folder in read if folder not in written]
    options = [f"-v {shlex.quote(mount)}" for mount in (_fleet(), *mounts)]
    return {"image": image, "run_options": [AS_WHOEVER_STARTED_RAY, *options]}


def _made(folders: Iterable[str]) -> Iterator[Path]:
    """Podman refuses to mount what is not there."""
    for folder in map(Path, folders):
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def _mount(folder: Path, to: str = "", how: str = "") -> str:
    return f"{folder}:{to or folder}{how}"


def _fleet() -> str:
    return _mount(Path(fleet.__file__).resolve().parent, f"{SOURCE}/fleet", ":ro")


def asking(image: str) -> list[str]:
    """A command line that ends where the Python of an image takes its arguments.

    Args:
        image: its name, as podman knows it.

    Raises:
        UsageError: there is no podman.
    """
    podman = shutil.which("podman")
    if podman is None:
        fix = "install podman; every node that runs images needs it"
        raise UsageError("stack", "image", "podman, which starts an image", "none", fix)
    around = ["--network=host", "-v", _fleet(), "--env", f"PYTHONPATH={SOURCE}"]
    return [podman, "run", "--rm", *around, "--entrypoint", "python", image]
