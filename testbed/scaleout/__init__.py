"""Past one machine: sweeps on hosts that Ray keeps together, and one network split over hosts.

Ray is an extra; only the command line imports this.

hosts file ─ `cluster up` ─ SSH ─> each host made ready, then a Ray node on it; on this machine the head
sweep      ─ `--on ray`   ─ Ray ─> a run is a task that takes a whole host, and starts `testbed run` there
run        ─ `--hosts`    ─ SSH ─> a process on each host for its part of the network (`split.process`)
"""
