"""A nemesis: small real runs, faults that are injected into them at events, and a checker that believes nothing.

    seed -> case.py: an experiment, and faults at moments
              nemesis.py: executes it (program.py, workers.py, member.py), injects faults.py into targets.py
                history.py: what the run left -> checker.py: what is wrong with it

`planted.py` has the bugs that the checker must find.
"""
