"""Input that nobody would write, or say: none may end in a traceback, or take all time or memory.

    files.py          what a user writes                messages.py   a line of the control protocol, a plan
    controllers.py    what is said to a live one        peers.py      greetings, frames, what members ask each other for
    requests.py       an owner's API, access to it      shaping_core.py, core/   the C core, with sanitizers

`python -m tests.fuzz --seconds 600` searches for such input, guided by the code that it reaches (search.py); the suite
feeds what the searches begin with, what they found once (corpus/), and some spoilt files.
"""
