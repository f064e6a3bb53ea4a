"""The room that programs have in their containers where nobody says otherwise, in bytes."""

from __future__ import annotations

TMP_BYTES = SHM_BYTES = 64 << 20
OUT_BYTES = 256 << 20
