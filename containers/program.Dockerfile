# What programs that are not ours find in a worker's container: the worker's PyTorch, `python`, `torchrun`, what PACKAGES
# names (NumPy, and what a requirements file asks for), and this package with its metadata.
#
# WORKER is what worker.Dockerfile made. The wheelhouse is pip's on the host, so this build needs no network.
ARG WORKER
FROM ${WORKER} AS install
ARG CHECKOUT
LABEL testbed.image=build testbed.checkout=${CHECKOUT}
ARG PACKAGES
USER root
COPY wheelhouse /wheelhouse
RUN mkdir /opt/added && [ -z "${PACKAGES}" ] || { \
    export PYTHONPATH="$(echo /wheelhouse/pip-*.whl)" \
    && python3 -m pip install --quiet --no-index --find-links /wheelhouse --no-cache-dir --no-deps \
        --root-user-action ignore --target /opt/added ${PACKAGES}; }

FROM ${WORKER}
USER root
COPY --from=install /opt/added /opt/site
COPY metadata /opt/testbed
COPY torchrun /usr/local/bin/torchrun
RUN ln -sf "$(command -v python3)" /usr/local/bin/python && chmod 755 /usr/local/bin/torchrun
ENV PATH=/opt/site/bin:${PATH} PYTHONWARNINGS=
USER worker:worker
WORKDIR /tmp
ENTRYPOINT []
