#!/bin/bash
# Makes this machine ready: packages, environment, compiled core, Docker engine, worker image.
#
#   ./setup.sh             every step that is not done yet; under 2 s when all are done
#   ./setup.sh fuzz        what `make fuzz` needs beside it: clang, and the fuzzer for Python
#   ./setup.sh scaleout    what `testbed cluster` and `--on ray` need beside it: Ray
#   ./setup.sh cluster     what `make cluster-test` needs beside that: an SSH server, unpacked in build/
#   ./setup.sh dashboard   what `make test-dashboard` needs beside it: Prometheus (110 MB), unpacked in build/
#   ./setup.sh docs        what `make docs` needs beside it: Zensical
#   ./setup.sh api         what `make test-api` needs beside it: Schemathesis, in build/, since it has pins of its own
#   ./setup.sh browser     what `make test-page` needs beside it: chromium
#   ./setup.sh lock        renew requirements.lock from the pins of pyproject.toml (`make update` does, and the images)
#   ./setup.sh installed   what an installed wheel needs beside its Python environment (`testbed setup` calls it so)
#   ./setup.sh give-back   hand files that root made in this checkout to the user who called sudo
#
# Needs root: it installs packages and starts an engine. Ends with 3 and a remedy where this machine can't.
set -euo pipefail
cd "$(dirname "$0")"
case $* in
'' | fuzz | scaleout | cluster | dashboard | docs | api | browser | lock | installed | give-back) ;;
*)
    sed -n '3,/^#$/{/^#   /s/^#   //p}' "${0##*/}" >&2
    exit 2
    ;;
esac
# Root's PATH may lack these, in a crontab or after `su`, and dpkg needs them.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

PACKAGES=(
    mininet iproute2 iptables ethtool kmod mount procps                    # the network, its modules and its names
    openvswitch-switch                                                     # a site's switch, where the kernel has it
    iperf3 iputils-ping                                                    # tools that measure it
    gcc libc6-dev                                                          # the compiler of the shaping core
    mmdebstrap debian-archive-keyring                                      # the worker image's base
)
# A checkout also needs an environment and, for tests, a kernel with netem. Ubuntu has none, nor has Debian on arm64.
if [ "${1:-}" != installed ]; then
    PACKAGES+=(python3-venv e2fsprogs crun)
    if grep -qsx 'ID=debian' /etc/os-release && [ "$(uname -m)" = x86_64 ]; then
        PACKAGES+=(user-mode-linux)
    fi
fi
IMPORTED=(testbed.worker.loop testbed.run.execute,testbed.controller.service,testbed.report.page,pytest,hypothesis)
# An installed wheel has an environment, and may not write beside its files: `testbed setup` names both.
PYTHON=${TESTBED_PYTHON:-.venv/bin/python}
BUILD=${TESTBED_BUILD:-build}
LOG=$BUILD/setup.log
# Seconds that the longer steps take on two cores when all of it is to be done; `left` is what is ahead of them.
declare -A USUAL=([packages]=60 [Python]=70 [worker]=60)
left=0
CLEAR= # the rest of a terminal's line, where the estimate stood
[ ! -t 1 ] || CLEAR=$'\e[K'
PIP_REMEDY="Check that pip can get the packages in requirements.lock: its settings (pip config list) and the network. If pip
says that a package does not match the hashes, its file is not one that the lock was made from: do not use the file
unless you know who made it. If your index serves builds of its own, 'make update' adds them to the lock."

# --- the frame: each step is named and timed; a failure shows the end of its output, and a remedy

# A step whose command may take a while. Its output goes to LOG; on failure the end of it is shown. (`set -e` has no
# effect in a function called from `if`: the commands of such a function are joined by &&.)
step() { # step TITLE REMEDY COMMAND...
    local title=$1 remedy=$2 started=$EPOCHREALTIME
    shift 2
    printf '%-58s' "  $title"
    [ -z "$CLEAR" ] || ((left == 0)) || printf 'about %d s left\r%-58s' "$left" "  $title"
    ((left -= left ? ${USUAL[${title%%[ :]*}]:-0} : 0)) || true
    if ! "$@" >"$LOG" 2>&1 </dev/null 9>&-; then
        [ "$(df --output=avail "$BUILD" | tail -n 1)" -gt 10240 ] ||
            remedy="The disk of $(realpath "$BUILD") is full: remove something (du -sh build runs), and try again."
        printf '%sfailed after %s\n\n' "$CLEAR" "$(seconds_since "$started")"
        tail -n 20 "$LOG" | sed 's/^/    /'
        printf '\n%s\n(The whole output is in %s.)\n' "$remedy" "$(realpath "$LOG")" >&2
        exit 3
    fi
    printf '%s%s\n' "$CLEAR" "$(seconds_since "$started")"
}

seconds_since() { # microseconds are whole numbers, which bash can count with
    local tenths=$(((${EPOCHREALTIME//[.,]/} - ${1//[.,]/}) / 100000))
    printf '%4d.%d s' $((tenths / 10)) $((tenths % 10))
}

cannot() { # cannot WHAT-AND-REMEDY
    printf '%s\n' "$1" >&2
    exit 3
}

# --- packages

missing_packages() {
    local wanted=("${PACKAGES[@]}") socket=${DOCKER_HOST:-unix:///var/run/docker.sock}
    # An engine that is there, or could be started, is anybody's choice: Docker's own packages, say.
    [ -S "${socket#unix://}" ] || command -v dockerd >/dev/null || wanted+=(docker.io)
    dpkg-query --show --showformat '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null |
        awk '$2 == "installed" {print $1}' | sort -u | comm -13 - <(printf '%s\n' "${wanted[@]}" | sort -u)
}

# A machine that has just booted may be upgrading itself. apt-get can wait for dpkg's lock, but not for that of its lists.
LOCK_S=300

update_lists() {
    local said deadline=$((SECONDS + LOCK_S))
    while ! said=$(LC_ALL=C apt-get update 2>&1); do
        if [[ $said != *"Could not get lock"* ]] || ((SECONDS > deadline)); then
            printf '%s\n' "$said"
            return 1
        fi
        sleep 3
    done
    printf '%s\n' "$said"
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    update_lists && apt-get -o "DPkg::Lock::Timeout=$LOCK_S" install --yes --no-install-recommends "$@"
}

# --- Python environment

# Mininet is a package of the distribution's Python, which need not be the first on PATH.
python_with_mininet() {
    local python
    for python in /usr/bin/python3 $(type -ap python3); do
        if "$python" -c 'import mininet, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    return 1
}

has_new_python() { # has_new_python PYTHON...: whether one of them is new enough
    local python
    for python in "$@"; do
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    done
    return 1
}

environment_inputs() { # a digest of all that .venv is made from; its scripts hold this directory's path
    { cat pyproject.toml requirements.lock && declare -f make_environment && echo "$PWD $1" && "$1" --version; } |
        sha256sum
}

locked() { # locked NAME: its entry in requirements.lock, whatever pyproject.toml pins
    sed -n "/^$1==/,/[^\\]$/p" requirements.lock
}

# A file whose hash is not in the lock is refused. Only wheels are taken, since the lock has no tools that build packages.
# For a refused file pip lists all hashes that it would take, 32 for torch. They are left out, so that the end of the
# output names the package.
pip_install() { # pip_install ENVIRONMENT OPTION...
    "$1/bin/python" -m pip install --require-hashes --only-binary=:all: "${@:2}" 2>&1 |
        sed -u -E '/^ *Expected .* [0-9a-f]{64}$/d'
}

# uv installs all packages but pip: 82 packages in 10 s instead of 40, since it gets several at once.
uv_install() { # uv_install OPTION...
    TMPDIR=$PWD/build .venv/bin/python -m containers.pip_settings "$@" # it leaves a lock where temporary files go
}

install_extras() { # install_extras NAME...: as pyproject.toml has them
    .venv/bin/python -m testbed.emulation.containers.requirements "$@" >build/requirements.txt &&
        uv_install --require-hashes --only-binary=:all: --requirement=build/requirements.txt \
            --constraint=requirements.lock
}

# Mininet is the only one of the distribution's Python packages that is used. The others may go with the next autoremove,
# so uv does not count them as installed. The distribution's pip, which a venv begins with, knows no hashes in
# constraints, and the worker image is built with them, so the lock's pip replaces it. Bytecode is made only for the 3,000
# of the 12,600 files that runs and tests import: PyTorch's, and beside it the others. All of them take a minute.
make_environment() { # make_environment PYTHON
    rm -rf .venv &&
        "$1" -m venv --system-site-packages .venv &&
        { locked pip && locked uv; } >build/tools.txt &&
        pip_install .venv --requirement build/tools.txt &&
        install_extras base build sync emulate test &&
        uv_install --no-deps --no-build-isolation --editable . &&
        printf '%s\n' "${IMPORTED[@]}" | env --unset=PYTHONDONTWRITEBYTECODE \
            xargs --max-procs=2 --replace .venv/bin/python -c 'import {}' &&
        environment_inputs "$1" >.venv/inputs
}

# A package of Debian's, unpacked: installed, it would start a service. The next run takes the folder for whole.
unpack() { # unpack PACKAGE FOLDER
    rm -rf "$2" "$2.part" && mkdir -p "$2.part" && update_lists &&
        (cd "$2.part" && apt-get download "$1" && dpkg -x "$1"_*.deb .) && mv "$2.part" "$2"
}

install_schemathesis() {
    rm -rf build/schemathesis && .venv/bin/python -m venv build/schemathesis &&
        build/schemathesis/bin/python -m pip install --quiet --only-binary=:all: schemathesis==4.32.5
}

has_libfuzzer() {
    echo 'int LLVMFuzzerTestOneInput(const char *data, unsigned long size) { return data[size]; }' |
        clang -fsanitize=fuzzer -xc - -o /dev/null 2>/dev/null
}

install_libfuzzer() { # its library is in a package that has clang's version in its name
    install_packages clang && install_packages "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
}

make_renewal_tools() { # make_renewal_tools PYTHON
    rm -rf build/renewal &&
        { locked pip && locked uv; } >build/tools.txt &&
        "$1" -m venv build/renewal &&
        pip_install build/renewal --requirement build/tools.txt
}

# --- files back to the user behind sudo

give_back() {
    # Only in a checkout that is that user's: another's, or root's own, is left as it is.
    [ -n "${SUDO_UID:-}" ] && [ "$(stat --format %u .)" = "$SUDO_UID" ] || return 0
    # Another command of the checkout may remove or rename a file before it is given back.
    find . -path ./.git -prune -o -uid 0 -exec chown --no-dereference "$SUDO_UID:$SUDO_GID" {} + 2>/dev/null || true
}

# --- the steps

if [ "${1:-}" = give-back ]; then
    give_back
    exit
fi
[ "$(id -u)" = 0 ] ||
    cannot "This needs root: it installs packages and makes networks. Run the same command with sudo in front."
command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    cannot "There is no apt-get here. Use Debian 12 or later, or Ubuntu 24.04 or later: in a virtual machine, say."
[ "${1:-}" = installed ] || trap give_back EXIT
mkdir -p "$BUILD" 2>/dev/null && [ -w "$BUILD" ] ||
    cannot "$BUILD can't be written. Use a file system that is neither read-only nor full."
# Two at a time would remove each other's environment. A step is not to hand the lock to a service that it starts.
exec 9>"$BUILD/setup.lock"
if ! flock --nonblock 9; then
    echo "Another set-up is under way in $BUILD: waiting for its end"
    flock 9
fi
# Before anything is installed. A machine without any Python gets the distribution's with Mininet.
mapfile -t pythons < <(type -ap python3 || true)
[ "${1:-}" = installed ] || [ ${#pythons[@]} -eq 0 ] || has_new_python "${pythons[@]}" ||
    cannot "Python here is older than 3.11. Use Debian 12 or later, or Ubuntu 24.04 or later."
begun=$EPOCHREALTIME
[ "${1:-}" = installed ] && echo "Setting up; what is built goes to $BUILD" || echo "Setting up in $PWD"

mapfile -t missing < <(missing_packages)
[ ${#missing[@]} -eq 0 ] || ((left += USUAL[packages]))
# The image follows from the same lock. An installed wheel has its environment already.
[ "${1:-}" = installed ] || [ -e .venv/inputs ] || ((left += USUAL[Python] + USUAL[worker]))
((left == 0)) || echo "  (about $left s on two cores, where downloads are quick)"
if [ ${#missing[@]} -gt 0 ]; then
    step "packages: ${missing[*]}" \
        "Check that apt-get works here (its sources, the network), or install by hand: ${missing[*]}" \
        install_packages "${missing[@]}"
fi

if [ "${1:-}" != installed ]; then
    python=$(python_with_mininet) ||
        cannot "No Python of 3.11 or later here imports mininet. Use Debian 12 or later, or Ubuntu 24.04 or later."

    if [ "${1:-}" = lock ]; then
        step "uv, which renews requirements.lock" "$PIP_REMEDY" make_renewal_tools "$python"
        build/renewal/bin/python -m containers.lock
        exit
    fi

    if ! [ -x .venv/bin/testbed ] || [ "$(environment_inputs "$python")" != "$(cat .venv/inputs 2>/dev/null)" ]; then
        step "Python environment .venv, from $python" \
            "$PIP_REMEDY" \
            make_environment "$python"
    fi
fi

if [ "${1:-}" = scaleout ] || [ "${1:-}" = cluster ]; then
    .venv/bin/python -c 'import ray' 2>/dev/null || step "Ray, for sweeps on machines" "$PIP_REMEDY" install_extras scaleout
fi

if [ "${1:-}" = cluster ]; then
    [ -x build/sshd/usr/sbin/sshd ] || step "SSH server for pretended hosts, unpacked" \
        "Check that apt-get works here (its sources, the network)." \
        unpack openssh-server build/sshd
    exit
fi

if [ "${1:-}" = dashboard ]; then
    command -v prometheus >/dev/null || [ -x build/prometheus/usr/bin/prometheus ] || step "Prometheus, unpacked" \
        "Check that apt-get works here (its sources, the network)." \
        unpack prometheus build/prometheus
    exit
fi

if [ "${1:-}" = docs ]; then
    .venv/bin/python -c 'import zensical' 2>/dev/null || step "Zensical, which makes the site" "$PIP_REMEDY" install_extras docs
    exit
fi

if [ "${1:-}" = api ]; then
    [ -x build/schemathesis/bin/schemathesis ] || step "Schemathesis, which asks the API" "$PIP_REMEDY" install_schemathesis
    exit
fi

if [ "${1:-}" = browser ]; then
    command -v chromium >/dev/null || step "chromium, which shows the page" \
        "Check that apt-get works here (its sources, the network), or install chromium by hand." \
        install_packages chromium
    exit
fi

if [ "${1:-}" = fuzz ]; then
    has_libfuzzer || step "clang, with libFuzzer" \
        "Check that apt-get works here (its sources, the network), or install clang and its libclang-rt package by hand." \
        install_libfuzzer
    .venv/bin/python -c 'import atheris' 2>/dev/null || step "atheris, libFuzzer for Python" "$PIP_REMEDY" install_extras fuzz
    exit
fi

step "shaping core" \
    "It is compiled with gcc against the headers of libc6-dev; see the output above." \
    "$PYTHON" -m testbed.emulation.shaping

step "planner" \
    "It is compiled with gcc against the headers of libc6-dev; see the output above." \
    "$PYTHON" -m testbed.planning

step "Docker engine" \
    "Start an engine yourself and run this again; an engine that runs is used." \
    "$PYTHON" -m testbed.emulation.containers.engine

step "worker image" \
    "Correct the fault that the output above names, and run this again; finished steps are kept." \
    "$PYTHON" -m testbed.emulation.containers.image

echo "Ready in $(seconds_since "$begun" | sed 's/^ *//')"
