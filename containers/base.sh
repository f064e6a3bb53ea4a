#!/bin/bash
# Makes the root file system of an image: Debian with Python, the packages named, and nothing to install more with.
#
#   containers/base.sh OUT.tar [PACKAGE...]     needs root and a Debian mirror, no image registry; alone 15 s and 130 MB
#
# The mirror is the one that apt on this host uses, where this host is a Debian of the same release;
# mmdebstrap's own default elsewhere; apt checks their signatures. What is on it changes, so which version of each
# package came is written beside the tar, to OUT.packages: `name=version`, a line each. The image's tag is its hash.
set -euo pipefail

RELEASE=bookworm
# Documentation and translations: 60 MB that nothing in a worker reads.
UNREAD=('/usr/share/doc/*' '/usr/share/man/*' '/usr/share/locale/*' '/usr/share/i18n/*' '/usr/share/info/*')

out=$1
shift
mirrors=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' 'Origin: Debian' 2>/dev/null | grep " $RELEASE" | sort -u) || mirrors=

export PACKAGES_FILE=${out%.tar}.packages
options=(
    --variant=essential --include=python3,libstdc++6
    --customize-hook='dpkg-query --admindir="$1/var/lib/dpkg" --show --showformat="\${Package}=\${Version}\n" >"$PACKAGES_FILE"'
)
for package in "$@"; do
    options+=("--include=$package")
done
for path in "${UNREAD[@]}"; do
    options+=(--dpkgopt="path-exclude=$path")
done

if [ -n "$mirrors" ]; then
    mmdebstrap "${options[@]}" "$RELEASE" "$out" - <<<"$mirrors"
else
    mmdebstrap "${options[@]}" "$RELEASE" "$out"
fi
