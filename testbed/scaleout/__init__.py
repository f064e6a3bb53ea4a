"""Runs on several machines: sweeps on hosts that Ray joins to a cluster, and one network split over hosts.

Ray is an extra; only the command line imports this package.

hosts file ─ `cluster up` ─ SSH ─> makes each host ready and starts a Ray node on it, and the head on this machine
sweep      ─ `--on ray`   ─ Ray ─> starts `testbed run` on a host for each run, as a task that takes the whole host
run        ─ `--hosts`    ─ SSH ─> starts a process on each host for its part of the network (`split.host`)
"""
