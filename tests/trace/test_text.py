from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.trace.text import BINARY, bytes_of, decoded, text_of, unpacked_name

pytestmark = pytest.mark.pure

MOST = 1000
TEXT = "time_s,rate_mbps\n0,40 # Zürich\n"


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-16-be marked"]
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_text_is_read_in_any_unicode_encoding(encoding: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    mark = b"\xfe\xff" if encoding.endswith("marked") else b""
    (tmp_path / "a").write_bytes(pack(mark + TEXT.encode(encoding.partition(" ")[0])))
    assert text_of(tmp_path / "a", MOST) == TEXT


def test_files_that_were_put_together_have_a_mark_each() -> None:
    assert decoded("a\n".encode("utf-8-sig") * 2 + b"\r\nb") == "a\na\n\r\nb"


@pytest.mark.parametrize(("begin", "kind"), BINARY)
def test_what_is_no_text_is_named(begin: bytes, kind: str) -> None:
    with pytest.raises(ValueError, match="it is ") as caught:
        decoded(begin + bytes(100))
    assert str(caught.value) == f"it is {kind}"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a\nb\nc\xe9\n", "line 3 has the byte 0xe9"),
        (b"a\nb\0\n", "line 2 has a NUL"),
        (b"\xff\xfea", "UTF-16"),
        (b"\xef\xbb\xbf\xff", "UTF-8"),
    ],
)
def test_a_wrong_byte_is_named_with_its_line(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decoded(data)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_file_may_be_damaged_or_without_end(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = pack(TEXT.encode())
    (tmp_path / "cut").write_bytes(data[:-12])
    with pytest.raises(ValueError, match="damaged"):
        bytes_of(tmp_path / "cut", MOST)
    (tmp_path / "long").write_bytes(pack(bytes(10_000_000)))
    with pytest.raises(ValueError, match="longer"):
        bytes_of(tmp_path / "long", MOST)


def test_a_file_as_long_as_is_allowed_is_read(tmp_path: Path) -> None:
    (tmp_path / "full").write_bytes(bytes(10))
    assert bytes_of(tmp_path / "full", 10) == bytes(10)
    with pytest.raises(ValueError, match="longer"):
        bytes_of(tmp_path / "full", 9)


def test_the_name_without_the_packing() -> None:
    names = ("a.csv.gz", "a.up.BZ2", "a.xz", "a.csv", ".gz")
    assert [unpacked_name(Path(name)).name for name in names] == ["a.csv", "a.up", "a", "a.csv", ".gz"]
