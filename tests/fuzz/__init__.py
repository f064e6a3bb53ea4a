"""Files that nobody would write: none may end in a traceback, or take all time or memory.

`python -m tests.fuzz --seconds 60` searches for such files, guided by the code they reach; the suite tries some.
"""
