"""Running tests under another kernel: Debian's user-mode-linux, an ordinary process, where the host's lacks netem."""
