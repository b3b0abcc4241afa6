# NVIDIA image, from the measured set of constraints-gpu.txt. From the top of the repository:
#   docker build -f infra/docker/cuda.Dockerfile -t REGISTRY/fleet:0.1.0-cuda .
# The development base: gptqmodel and the device digests compile kernels with its nvcc. CUDA and
# Python are those that tests/golden was measured with; a driver >= 580 is the host's.
# Checked with hadolint 2.15.1 and dockerfile-parse 2.0.1.
ARG CUDA=13.0.1-devel-ubuntu24.04
FROM nvidia/cuda:${CUDA}
ARG PIP_TORCH=""

# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
    g++ gcc libc6-dev ninja-build python3.12 python3.12-dev python3.12-venv wget \
 && rm -rf /var/lib/apt/lists/* \
 && rm -f /etc/machine-id \
 && (userdel --remove ubuntu || true) \
 && useradd --uid 1000 --create-home fleet \
 && install -d -o fleet -g fleet /data /opt/fleet

WORKDIR /opt/fleet
RUN python3.12 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    HF_HUB_OFFLINE=1

COPY constraints-gpu.txt pyproject.toml README.md LICENSE ./
# hadolint ignore=SC2086
RUN pip install --no-cache-dir ${PIP_TORCH} -c constraints-gpu.txt torch triton

# gptqmodel 7.7 declares a newer torch than it needs: it goes in by itself, then all else it needs.
# hadolint ignore=DL3013,DL3059
RUN pip install --no-cache-dir -c constraints-gpu.txt --no-deps gptqmodel \
 && python -c "import importlib.metadata as m, re; \
[print(r) for r in m.requires('gptqmodel') \
 if 'extra ==' not in r and re.split(r'[^A-Za-z0-9_.-]', r)[0].lower() not in ('torch', 'triton')]" \
    > /tmp/needed.txt \
 && pip install --no-cache-dir -c constraints-gpu.txt -r /tmp/needed.txt
COPY fleet fleet
RUN sed -i '/"gptqmodel/d' pyproject.toml \
 && pip install --no-cache-dir -c constraints-gpu.txt -e '.[cluster]' \
 && python -c "import gptqmodel, ray, torch, transformers"
COPY configs configs
COPY jobs jobs

USER 1000
HEALTHCHECK NONE
CMD ["fleet", "doctor"]
