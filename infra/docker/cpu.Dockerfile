# CPU image, from the tested set of constraints-cpu.txt. From the top of the repository:
#   docker build -f infra/docker/cpu.Dockerfile -t REGISTRY/fleet:0.1.0-cpu .
# PIP_TORCH takes options for the pip call that installs torch, such as another index.
# Checked with hadolint 2.15.1 and dockerfile-parse 2.0.1.
ARG PYTHON=3.11.14-slim-bookworm
FROM python:${PYTHON}
ARG PIP_TORCH=""

# gcc: pypcre builds with it, and kernels are compiled at run time; wget: KubeRay's probes of images
# with an older Ray. Debian fixes the versions of a release, so apt pins nothing (DL3008).
# A machine id in an image would make every host of it one unit.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ gcc libc6-dev wget \
 && rm -rf /var/lib/apt/lists/* \
 && rm -f /etc/machine-id \
 && useradd --uid 1000 --create-home fleet \
 && install -d -o fleet -g fleet /data /opt/fleet

WORKDIR /opt/fleet
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    HF_HUB_OFFLINE=1

# Torch goes first, alone: what needs it then finds it.
COPY constraints-cpu.txt pyproject.toml README.md LICENSE ./
# hadolint ignore=SC2086
RUN pip install --no-cache-dir ${PIP_TORCH} -c constraints-cpu.txt torch

# Contracts, datasets and controls are read beside the package: it is installed where it lies.
COPY fleet fleet
RUN pip install --no-cache-dir -c constraints-cpu.txt -e '.[cluster]'
COPY configs configs
COPY jobs jobs

USER 1000
HEALTHCHECK NONE
CMD ["fleet", "doctor"]
