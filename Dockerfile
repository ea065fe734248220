# Holdfast in a container: CPU by default, CUDA and ROCm by a build argument.
#
#   docker build -t holdfast .
#   docker build -t holdfast:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .
#   docker build -t holdfast:rocm --build-arg TORCH_INDEX=https://download.pytorch.org/whl/rocm6.3 .
#
#   docker run --rm --shm-size=8g --stop-timeout=120 -v "$PWD:/training" holdfast train my_script.py
#
# docs/containers.md says why --shm-size and --stop-timeout, and has Slurm and Kubernetes.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE MANIFEST.in ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=monitor,stacks
# A run writes to /training, which is mounted from outside; its owner runs the container with --user.
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    HOME=/tmp/home \
    XDG_STATE_HOME=/training/.holdfast
COPY --from=build /wheels /wheels
RUN pip install "torch>=2.6" --index-url "${TORCH_INDEX}" \
    && pip install "$(echo /wheels/holdfast-*.whl)[${EXTRAS}]" \
    && rm -rf /wheels \
    && mkdir -p /tmp/home /training \
    && chmod 1777 /tmp/home /training
WORKDIR /training
# SIGTERM makes a run save its state and end with 75.
STOPSIGNAL SIGTERM
USER 1000
ENTRYPOINT ["python", "-m", "holdfast.cli.container"]
CMD ["doctor"]
