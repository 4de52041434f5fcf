# A Kafka to test against, and the API that controls it: see docs/control.md.
#
#   docker build --tag fencepost .
#   docker run --rm -p 127.0.0.1:9092:9092 -p 127.0.0.1:9644:9644 fencepost
ARG PYTHON_VERSION=3.13
FROM python:${PYTHON_VERSION}-slim AS build
COPY requirements.lock /locked
RUN sed -e '/--hash/d' -e 's/ *\\$//' /locked > /constraints && python -m venv /venv
COPY . /source
RUN /venv/bin/pip install --no-cache-dir --constraint /constraints '/source[control]' \
    && /venv/bin/pip uninstall --yes pip \
    && /venv/bin/python -m compileall -q /venv

FROM python:${PYTHON_VERSION}-slim
COPY --from=build /venv /venv
RUN useradd --system --no-create-home fencepost
USER fencepost
EXPOSE 9092 9644
HEALTHCHECK --interval=2s --timeout=5s --retries=15 \
    CMD ["/venv/bin/python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9644/health')"]
ENTRYPOINT ["/venv/bin/fencepost", "serve"]
# Clients on the host find it at localhost:9092. Those in other containers need a name of theirs in advertised.listeners.
CMD ["--quick", "--control", "0.0.0.0:9644", "--config", "auto.create.topics.enable=true", \
     "--config", "listeners=PLAINTEXT://0.0.0.0:9092", \
     "--config", "advertised.listeners=PLAINTEXT://localhost:9092"]
