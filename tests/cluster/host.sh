# The first process of a pretended host, in namespaces of its own: mounts the host's folders, then reaps orphans.
#   host.sh STATE CHECKOUT
# The host runs this machine's programs, but all that it writes is its own: /run, /tmp, logs, the engine's data, the
# checkout.
set -e
state=$1 checkout=$2
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd /run/lock
mount -t tmpfs -o size=256m tmpfs /dev/shm
mkdir -p "$state"/{tmp,log,docker,lib,etc,ssh,upper,work}
chmod 1777 "$state/tmp"
chmod 700 "$state/ssh"
mkdir -p /var/lib/docker /var/lib/testbed /etc/docker /root/.ssh /etc/testbed
mount -t overlay overlay -o "lowerdir=$checkout,upperdir=$state/upper,workdir=$state/work" "$checkout"
mount --bind "$state/docker" /var/lib/docker
mount --bind "$state/lib" /var/lib/testbed
mount --bind "$state/log" /var/log
mount --bind "$state/etc" /etc/docker
mount --bind "$state/ssh" /root/.ssh
mount --bind "$state/passwd" /etc/passwd
mount --bind "$state/tmp" /tmp
ip link set lo up
echo ready
sleep infinity &
while :; do wait || true; done
