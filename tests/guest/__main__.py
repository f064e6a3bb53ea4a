"""`python -m tests.guest [pytest arguments]`: run the tests marked `guest` in the guest kernel."""

from __future__ import annotations

import sys

from testbed.emulation.containers.engine import EngineError
from testbed.emulation.containers.image import ImageError
from tests.guest.disk import engine_disk
from tests.guest.kernel import GuestError, test_in_guest
from tests.marked import marked

#: The whole lane takes some two minutes; the guest is switched off when it hangs.
LIMIT_S = 480

if __name__ == "__main__":
    try:
        words = sys.argv[1:] or marked(["guest"])
        result = test_in_guest(["-m", "guest", *words], limit_s=LIMIT_S, disk=engine_disk())
    except (EngineError, GuestError, ImageError) as error:
        sys.exit(str(error))
    print(result.console)
    sys.exit(result.status)
