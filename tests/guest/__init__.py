"""Tests under another kernel, Debian's user-mode-linux, for what the host's kernel lacks."""
