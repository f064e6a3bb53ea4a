"""Past one machine: sweeps on hosts that Ray keeps together. Ray is an extra; only the command line imports this.

hosts file ─ `cluster up` ─ SSH ─> each host made ready, then a Ray node on it; on this machine the head
sweep      ─ `--on ray`   ─ Ray ─> a run is a task that takes a whole host, and starts `testbed run` there
"""
