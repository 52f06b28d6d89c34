# The test image of a CUDA and a Python: CUDA's run time, Paddle, pytest, NCCL where the base's package
# sources have it, and a compiler, because libraries written in a DSL compile their kernels when they run.
#
# As in build.Dockerfile, wheels come from the build context, and the CPython from PYTHONS.

# A CUDA run-time image, or the farm's air-gapped base.
ARG BASE
ARG PYTHONS=${BASE}

# -- /export: the CPythons that the base lacks ---------------------------------------------------------------
FROM ${PYTHONS} AS pythons
ARG BASE
ARG PYTHONS=${BASE}
COPY scripts/export-pythons.sh /farm/
RUN sh /farm/export-pythons.sh "${BASE}" "${PYTHONS}" /export

# -- base with packages and CPythons -------------------------------------------------------------------------
FROM ${BASE} AS runtime
ARG GCC_TOOLSET=
COPY --from=pythons /export/ /
COPY scripts/install-packages.sh /farm/
RUN GCC_TOOLSET="${GCC_TOOLSET}" sh /farm/install-packages.sh test && rm -r /farm

# -- /opt/farm and /opt/test ---------------------------------------------------------------------------------
FROM runtime AS tools
ARG PYTHON_VERSION
COPY locks/ /farm/locks/
COPY wheelhouse/ /farm/wheelhouse/
COPY scripts/install-environments.sh /farm/
RUN sh /farm/install-environments.sh farm "${PYTHON_VERSION}" \
 && sh /farm/install-environments.sh test "${PYTHON_VERSION}"

# -- the image -----------------------------------------------------------------------------------------------
FROM runtime AS test
COPY --from=tools /opt/farm/ /opt/farm/
COPY --from=tools /opt/test/ /opt/test/
ARG UID=1000
ARG GID=1000
COPY scripts/finish.sh /farm/
RUN sh /farm/finish.sh test "${UID}" "${GID}" && rm -r /farm
ENV PATH=/opt/test/bin:/opt/compiler/bin:${PATH} \
    HOME=/home/farm \
    LC_ALL=C.UTF-8
WORKDIR /project
USER ${UID}:${GID}
# -s: it reaps orphans also where the engine's own --init is process 1.
ENTRYPOINT ["/usr/bin/tini", "-s", "--"]
CMD ["/bin/bash"]

ARG CUDA
ARG PYTHON_VERSION
ARG PADDLE
ARG COMPILER
ARG DEFINITION
ARG BASE
ARG BASE_DIGEST
LABEL org.opencontainers.image.title="paddlefleet-farm test image, CUDA ${CUDA}, Python ${PYTHON_VERSION}" \
      org.opencontainers.image.source="https://github.com/PaddlePaddle/PaddleFleet" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      org.paddlefleet.farm.role="test" \
      org.paddlefleet.farm.cuda="${CUDA}" \
      org.paddlefleet.farm.pythons="${PYTHON_VERSION}" \
      org.paddlefleet.farm.paddle="${PADDLE}" \
      org.paddlefleet.farm.compiler="${COMPILER}" \
      org.paddlefleet.farm.definition="${DEFINITION}" \
      org.paddlefleet.farm.base="${BASE}" \
      org.paddlefleet.farm.base-digest="${BASE_DIGEST}"
