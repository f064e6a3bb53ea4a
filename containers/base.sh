#!/bin/bash
# Makes the root file system of the worker image: Debian with Python and nothing to install more with.
#
#   containers/base.sh OUT.tar      about 15 s and 130 MB; needs root and a Debian mirror, no image registry
#
# The mirror is the one that apt on this host uses, where this host is a Debian of the same release;
# mmdebstrap's own default elsewhere. What the tar holds follows from this file alone, so the image's tag is
# made of this file's hash.
set -euo pipefail

RELEASE=bookworm
# Documentation and translations: 60 MB that nothing in a worker reads.
UNREAD=('/usr/share/doc/*' '/usr/share/man/*' '/usr/share/locale/*' '/usr/share/i18n/*' '/usr/share/info/*')

out=$1
mirrors=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' 'Origin: Debian' 2>/dev/null | grep " $RELEASE" | sort -u) || mirrors=

options=(--variant=essential --include=python3,libstdc++6)
for path in "${UNREAD[@]}"; do
    options+=(--dpkgopt="path-exclude=$path")
done

if [ -n "$mirrors" ]; then
    mmdebstrap "${options[@]}" "$RELEASE" "$out" - <<<"$mirrors"
else
    mmdebstrap "${options[@]}" "$RELEASE" "$out"
fi
