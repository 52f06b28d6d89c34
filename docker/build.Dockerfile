# The build image of a CUDA: compilers, CPythons, and the farm's own tools. The farm's code is always mounted.
#
# Everything that is installed with pip comes from the build context, which `python -m ci images` prepares,
# so nothing about a package index can get in. Built by BuildKit, by the classic builder and by podman alike.

# A CUDA devel image, Paddle's manylinux devel image, or the farm's air-gapped base.
ARG BASE
# An image that has CPythons below /opt/python; the same as BASE when BASE has them itself.
ARG PYTHONS=${BASE}

# -- /export: the CPythons that the base lacks ---------------------------------------------------------------
FROM ${PYTHONS} AS pythons
ARG BASE
ARG PYTHONS=${BASE}
COPY scripts/export-pythons.sh /farm/
RUN sh /farm/export-pythons.sh "${BASE}" "${PYTHONS}" /export

# -- base with compilers and CPythons ------------------------------------------------------------------------
FROM ${BASE} AS compilers
ARG GCC_TOOLSET=
COPY --from=pythons /export/ /
COPY scripts/install-packages.sh /farm/
RUN GCC_TOOLSET="${GCC_TOOLSET}" sh /farm/install-packages.sh build && rm -r /farm
ENV PATH=/opt/compiler/bin:${PATH}

# -- /opt/farm, and /staged: what is added to each CPython ---------------------------------------------------
FROM compilers AS tools
ARG FARM_PYTHON=3.12
ARG PYTHON_VERSIONS="3.10 3.11 3.12 3.13"
COPY locks/ /farm/locks/
COPY wheelhouse/ /farm/wheelhouse/
COPY scripts/install-environments.sh /farm/
RUN sh /farm/install-environments.sh farm "${FARM_PYTHON}" \
 && sh /farm/install-environments.sh pythons "${PYTHON_VERSIONS}"

# -- the image -----------------------------------------------------------------------------------------------
FROM compilers AS build
ARG FARM_PYTHON=3.12
ARG PYTHON_VERSIONS="3.10 3.11 3.12 3.13"
COPY scripts/finish.sh /farm/
RUN sh /farm/finish.sh clear "${PYTHON_VERSIONS}"
COPY --from=tools /opt/farm/ /opt/farm/
COPY --from=tools /staged/ /
RUN sh /farm/finish.sh build "${FARM_PYTHON}" "${PYTHON_VERSIONS}" && rm -r /farm
ENV HOME=/home/farm \
    LC_ALL=C.UTF-8
WORKDIR /project

ARG CUDA
ARG COMPILER
ARG DEFINITION
ARG BASE
ARG BASE_DIGEST
LABEL org.opencontainers.image.title="paddlefleet-farm build image, CUDA ${CUDA}" \
      org.opencontainers.image.source="https://github.com/PaddlePaddle/PaddleFleet" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      org.paddlefleet.farm.role="build" \
      org.paddlefleet.farm.cuda="${CUDA}" \
      org.paddlefleet.farm.pythons="${PYTHON_VERSIONS}" \
      org.paddlefleet.farm.compiler="${COMPILER}" \
      org.paddlefleet.farm.definition="${DEFINITION}" \
      org.paddlefleet.farm.base="${BASE}" \
      org.paddlefleet.farm.base-digest="${BASE_DIGEST}"
