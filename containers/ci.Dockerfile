# A machine in small, as a CI runner gives one: the packages that setup.sh installs, a Docker engine among them, and the
# wheel with the Python packages that it needs. `make smoke` runs it with the rights that an engine inside needs.
#
# BASE is what containers/base.sh makes with those packages. The wheelhouse is pip's on the host, so this build needs
# no network; the layer of packages stays in the engine's cache while the code changes.
ARG BASE
FROM ${BASE} AS install
ARG CHECKOUT
LABEL testbed.image=build testbed.checkout=${CHECKOUT}
ARG PACKAGES
COPY wheelhouse /wheelhouse
RUN export PYTHONPATH="$(echo /wheelhouse/pip-*.whl)" \
    && python3 -m pip install --quiet --no-index --find-links /wheelhouse --no-cache-dir --root-user-action ignore \
        --target /opt/packages ${PACKAGES} \
    && rm -rf /opt/packages/torch/include /opt/packages/torch/test /opt/packages/torch/share \
    && find /opt/packages/torch/bin -type f ! -name torch_shm_manager -delete
COPY wheel /wheel
RUN export PYTHONPATH="$(echo /wheelhouse/pip-*.whl)" \
    && python3 -m pip install --quiet --no-index --no-deps --no-cache-dir --root-user-action ignore \
        --target /opt/testbed /wheel/*.whl

FROM ${BASE}
COPY --from=install /opt/packages /opt/packages
COPY --from=install /opt/testbed /opt/testbed
# The engine loads AppArmor's profiles, for which a container lacks the programs, unless it sees that it is in one.
ENV PATH=/opt/testbed/bin:$PATH PYTHONPATH=/opt/testbed:/opt/packages container=docker \
    DOCKER_HOST=unix:///engine/docker.sock
WORKDIR /testbed
RUN mkdir /engine && python3 -m compileall -q /opt/testbed && python3 -m testbed.emulation.shaping && python3 -m testbed.planning
# The engine is the first process, without a network of its own: the workers' containers have none but the emulated.
# What it starts has its place in a control group of this name, by which it is found should it be left.
ENTRYPOINT ["python3", "-P", "-m", "testbed.emulation.containers.engine", "become", \
    "--host=unix:///engine/docker.sock", "--bridge=none", "--cgroup-parent=/testbed-smoke"]
