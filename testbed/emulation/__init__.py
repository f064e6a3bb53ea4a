"""The emulated network: Mininet nodes, containers as hosts, shaped links, the replay of traces, and clean-up."""

from testbed.emulation.mininet_package import find_mininet

find_mininet()  # before any module of this room is imported: several import Mininet
