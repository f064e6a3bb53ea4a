# What every worker shares and what seldom changes: a Python and the packages of the `sync` extra.
#
# BASE is the Debian that containers/base.sh makes, or the image that BASE_IMAGE names. Its context is the
# wheelhouse that pip on the host filled, so this build needs no network. What the base brings itself (a torch with
# CUDA, say) is neither in the PACKAGES nor in the wheelhouse: it is used as it is. The base may name another user.
ARG BASE
FROM ${BASE} AS install
USER root
ARG CHECKOUT
LABEL testbed.image=build testbed.checkout=${CHECKOUT}
ARG PACKAGES
COPY wheelhouse /wheelhouse
# pip runs out of its own wheel, so the image holds none. Half of what torch brings is for building and testing
# extensions: headers, C++ tests, compilers (200 MB). torch_shm_manager is the one program that torch runs.
# /opt/site is there already only where an image of ours is the base; it need not be copied onto itself.
RUN rm -rf /opt/site && mkdir /opt/site && [ -z "${PACKAGES}" ] || { \
    export PYTHONPATH="$(echo /wheelhouse/pip-*.whl)" \
    && python3 -m pip install --quiet --no-index --find-links /wheelhouse --no-cache-dir \
        --root-user-action ignore --target /opt/site ${PACKAGES} \
    && rm -rf /opt/site/bin /opt/site/share /opt/site/torch/include /opt/site/torch/test /opt/site/torch/share \
    && { [ ! -d /opt/site/torch ] || find /opt/site/torch/bin -type f ! -name torch_shm_manager -delete; } \
    && find /opt/site -path '*/torch/*' -prune -o -type d -name tests -prune -exec rm -rf {} + \
    && find /opt/site -name '*.pyi' -delete; }

FROM ${BASE}
USER root
COPY --from=install /opt/site /opt/site
ENV PYTHONPATH=/opt/testbed:/opt/site
RUN python3 -c 'import msgspec, torch'
