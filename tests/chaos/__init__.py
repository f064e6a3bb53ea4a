"""Fault injection: small real runs, faults at events of the run, and a checker that reads only records.

    seed -> case.py: an experiment, and faults at moments
              nemesis.py: executes it (program.py, workers.py, member.py), injects faults.py into targets.py
                history.py: what the run left -> checker.py: which rules it broke
      shrink.py: a case that broke a rule -> the smallest that breaks it (`--case N --shrink`)

`planted.py` has the bugs that the checker must find.
"""
