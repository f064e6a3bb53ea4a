"""Search for input that ends in a traceback, or takes all time or memory.

    files.py          files that a user writes          imports.py    files of other programs
    messages.py       lines of the control protocol     peers.py      greetings, frames and requests of members
    controllers.py    talks with a live controller      requests.py   requests to an owner's API, access to it
    shaping_core.py, core/   the C core, with sanitizers

`python -m tests.fuzz --seconds 600` searches for such input, guided by the code that the input reaches (search.py). The
suite feeds the seeds of the searches, earlier findings (corpus/), and some spoilt files.
"""
