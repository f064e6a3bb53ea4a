# A worker: the data, a user who is nobody, and on top the code, so that a change of code rebuilds one layer.
#
# RUNTIME is what torch.Dockerfile made. The container is run with a read-only root, a tmpfs at /tmp, no
# capabilities and no new privileges: so nothing is written to the image's file system, bytecode least of all,
# and it is compiled here instead.
#
# NumPy is left out: torch does without it, and each worker is 14 MB smaller. The data is therefore plain
# numbers that torch.frombuffer reads; containers/digits.py says how.
#
# The C library makes as many as eight heaps (arenas) for each processor, and a heap keeps what its threads freed. Each
# lost peer brings new threads, which use other heaps, so that one heap after another kept a freed gradient.
ARG RUNTIME
FROM ${RUNTIME}
RUN echo 'worker:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'worker:x:10001:' >> /etc/group
ENV HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MALLOC_ARENA_MAX=2 \
    PYTHONWARNINGS="ignore:Failed to initialize NumPy"
WORKDIR /opt/testbed
ENTRYPOINT ["python3", "-m", "testbed.worker"]
COPY digits /usr/share/testbed/digits
COPY documentation /usr/share/testbed/documentation
COPY testbed /opt/testbed/testbed
RUN python3 -m compileall -q /opt/testbed
USER worker:worker
