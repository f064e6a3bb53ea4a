# A machine in small, as a CI runner gives one: the packages that setup.sh installs, a Docker engine among them, the
# Python packages, and on top the code. `make smoke` runs it with the rights that an engine inside needs.
#
# BASE is what containers/base.sh makes with those packages. The wheelhouse is pip's on the host, so this build needs
# no network; its layer (300 MB) stays, so that a change of the code finds the next one in the engine's cache.
ARG BASE
FROM ${BASE}
ARG PACKAGES
COPY wheelhouse /wheelhouse
RUN export PYTHONPATH="$(echo /wheelhouse/pip-*.whl)" \
    && python3 -m pip install --quiet --no-index --find-links /wheelhouse --no-cache-dir --root-user-action ignore \
        --target /opt/site ${PACKAGES}
# The engine loads AppArmor's profiles, for which a container lacks the programs, unless it sees that it is in one.
ENV PYTHONPATH=/opt/site container=docker
WORKDIR /testbed
COPY code /testbed
RUN python3 -m compileall -q testbed && python3 -m testbed.emulation.shaping && python3 -m testbed.planning
# The engine is the first process, without a network of its own: the workers' containers have none but the emulated.
# What it starts has its place in a control group of this name, by which it is found should it be left.
ENTRYPOINT ["dockerd", "--host=unix:///engine/docker.sock", "--bridge=none", "--cgroup-parent=/testbed-smoke"]
