"""`python -m tests.guest [pytest arguments]`: run the tests marked `guest` in the guest kernel."""

from __future__ import annotations

import sys

from tests.guest.kernel import GuestError, test_in_guest

LIMIT_S = 600

if __name__ == "__main__":
    try:
        result = test_in_guest(["-m", "guest", *sys.argv[1:]], limit_s=LIMIT_S)
    except GuestError as error:
        sys.exit(str(error))
    print(result.console)
    sys.exit(result.status)
