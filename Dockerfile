# Shoal in a container; the build argument TORCH_INDEX chooses the build of PyTorch.
#
#   docker build -t shoal .                                                          CPU
#   docker build -t shoal:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .
#   docker run --rm -it --shm-size=1g -v "$PWD/runs:/work/runs" shoal train impala --env CartPole-v1
#   docker run --rm -it --gpus all -v "$PWD/runs:/work/runs" shoal:cuda train impala --env ALE/Pong-v5
#
# PyTorch's builds for CUDA bring its libraries; the host needs the driver and the NVIDIA container toolkit alone. No GPU
# has run Shoal yet, in a container or elsewhere.
FROM python:3.11-slim-bookworm

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=plot
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

RUN useradd --create-home --uid 1000 shoal && mkdir -p /work/runs && chown -R shoal /work
RUN pip install --index-url "${TORCH_INDEX}" "torch>=2.6"
COPY pyproject.toml README.md LICENSE /src/
COPY shoal /src/shoal
RUN pip install "/src[${EXTRAS}]"

USER 1000
WORKDIR /work
ENTRYPOINT ["shoal"]
CMD ["systems"]
