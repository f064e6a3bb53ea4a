"""Text files that users name, as other programs write them: in any Unicode encoding, compressed or not.

Each reader of other people's files goes through this module, so that all readers understand the same encodings and
refuse other files in the same words.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from testbed.trace.trace import TraceError

#: The longest trace file: ten million packets of a packet-delivery file, or a million rows of CSV. As Python values
#: they take twenty times as much memory, and ten seconds.
MOST_BYTES = 64 * 2**20

#: The first bytes of compressed files.
GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"
#: The suffixes of compressed files; the suffix before them tells the format inside.
COMPRESSED = (".gz", ".bz2", ".xz")

#: Byte-order marks. UTF-32's little-endian mark begins with UTF-16's.
MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)

#: The first bytes of files that are often taken for text → what the file is, and what to do with it.
BINARY = (
    (b"PK\x03\x04", "a ZIP archive, as spreadsheets (.xlsx, .ods) are; unpack it, or export the sheet as CSV"),
    (b"\xd0\xcf\x11\xe0", "an old spreadsheet or document (.xls, .doc); export it as CSV"),
    (b"\x28\xb5\x2f\xfd", "compressed by Zstandard; unpack it with `zstd -d`"),
    (b"7z\xbc\xaf", "a 7z archive; unpack it"),
    (b"\xd4\xc3\xb2\xa1", "a capture of packets; make a trace of it with `testbed trace import pcap`"),
    (b"\xa1\xb2\xc3\xd4", "a capture of packets; make a trace of it with `testbed trace import pcap`"),
    (b"\x4d\x3c\xb2\xa1", "a capture of packets; make a trace of it with `testbed trace import pcap`"),
    (b"\x0a\x0d\x0d\x0a", "a capture of packets; make a trace of it with `testbed trace import pcap`"),
    (b"%PDF", "a PDF document; write its figures into a text file"),
    (b"\x89PNG", "a picture; write its figures into a text file"),
    (b"\x7fELF", "a program; name the file that the program writes"),
    (b"SQLite format 3", "an SQLite database; export the table as CSV"),
    (b"\x89HDF", "an HDF5 file; export the table as CSV"),
    (b"PAR1", "a Parquet file; export the table as CSV"),
    (b"\x93NUMPY", "a NumPy array; write it with `numpy.savetxt`"),
)

#: UTF-16 without a mark: at least this share of the bytes at the even or at the odd places is NUL, since digits and
#: Latin letters have one NUL each.
NULS = 0.4


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a file or a pipe for reading. A file that gzip, bzip2 or xz compressed is unpacked.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The compressed file is damaged or cut short, or no file can have this name.
    """
    with path.open("rb") as file:
        unpacked = _unpacked(file)
        if unpacked is None:
            yield file
            return
        try:
            yield unpacked
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            raise ValueError(f"the compressed file is damaged or cut short ({error}); copy it again") from None


def _unpacked(file: io.BufferedReader) -> BinaryIO | None:
    begin = file.peek(8)
    if begin.startswith(GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if begin.startswith(BZIP2) and begin[4:8] == b"1AY&":
        return cast(BinaryIO, bz2.BZ2File(file))
    if begin.startswith(XZ):
        return cast(BinaryIO, lzma.LZMAFile(file))
    return None


def bytes_of(path: Path, most_bytes: int) -> bytes:
    """Return the file's content, unpacked. Raises ValueError beyond `most_bytes`, since `/dev/zero` has no end."""
    with open_bytes(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it is longer than {most_bytes / 2**20:g} MiB")
    return data


def text_of(path: Path, most_bytes: int) -> str:
    """Return the file's text. Raises OSError, or ValueError for a file that is no text or beyond `most_bytes`."""
    return decoded(bytes_of(path, most_bytes))


def decoded(data: bytes) -> str:
    """Return the text of bytes in UTF-8, UTF-16 or UTF-32, by their byte-order mark or by the bytes themselves.

    Raises ValueError where the bytes are not text; the error says what they are, or names the line of a wrong byte.
    """
    if kind := kind_of(data):
        raise ValueError(f"it is {kind}")
    encoding = next((name for mark, name in MARKS if data.startswith(mark)), None) or _unmarked(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            shown = encoding.removesuffix("-sig").upper()
            raise ValueError(f"it begins as {shown} and has bytes that are not; save it as UTF-8") from None
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        raise ValueError(f"line {line} has the byte 0x{byte:02x}, which is not UTF-8; save it as UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"line {line} has a NUL byte, which text does not have; name a text file")
    # Files that were joined one after the other have a mark at the beginning of each.
    return text.removeprefix("\ufeff").replace("\n\ufeff", "\n")


def kind_of(data: bytes) -> str | None:
    """Return what a file that begins with these bytes is, and what to do with it; None for text and unknown files."""
    return next((kind for begin, kind in BINARY if data.startswith(begin)), None)


def _unmarked(data: bytes) -> str:
    """Return the name of a text's encoding if no byte-order mark tells it: by the places of its zero bytes."""
    pairs = len(data) // 2
    if pairs and len(data) % 2 == 0:
        even, odd = data[0::2].count(0), data[1::2].count(0)
        if odd > NULS * pairs and not even:
            return "utf-16-le"
        if even > NULS * pairs and not odd:
            return "utf-16-be"
    return "utf-8"


def read_text(path: Path) -> str:
    """Return the text of a trace file. Raises TraceError where the file can't be read."""
    try:
        return text_of(path, MOST_BYTES)
    except FileNotFoundError:
        raise TraceError(f"{path}: the trace does not exist; check the path", rule="missing", file=path) from None
    except (OSError, ValueError) as error:  # ValueError: too long, no text, or a path that no file can have
        text = (
            f"{path}: the file can't be read as text: {error}; write UTF-8 text, {MOST_BYTES >> 20} MiB of it at most"
        )
        raise TraceError(text, rule="unreadable", file=path) from None


def unpacked_name(path: Path) -> Path:
    """Return the name that the file has once it is unpacked: `a.csv` for `a.csv.gz`."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED and path.stem else path


def numbered(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Return the lines that are neither empty nor begin with `#`, with their numbers from 1."""
    return [
        (number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")
    ]


def as_line(text: str) -> str:
    """Return a text as one line of valid UTF-8; the name of a file may have line breaks, and bytes that are no text."""
    return " ".join(text.splitlines()).encode(errors="replace").decode()


def hash_of_file(path: Path) -> str:
    """Return a digest of a file's content, which may be larger than the memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
