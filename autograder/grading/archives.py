"""What is in archives, read in memory.

Nothing is written to disk, so no name in one can lead anywhere.
"""

import dataclasses
import io
import lzma
import re
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable

MAX_FILE = 60 * 2**20
MAX_TOTAL = 4 * 2**30  # bytes in one archive, unpacked
MAX_ENTRIES = 100_000
# What reading a damaged file or archive raises, at once or member by member.
DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
)


@dataclasses.dataclass(frozen=True)
class File:
    """A file that arrived.

    path: its parts, below what was handed to the grader; where that is a
        student's folder, or in it, from that folder on
    read(): its bytes
    trouble: why it cannot even be read, "" if it can
    packed: whether it comes from an archive that a student may have packed
    """

    path: tuple[str, ...]
    read: Callable
    modified: float = 0.0
    trouble: str = ""
    packed: bool = False

    @property
    def label(self):
        return "/".join(self.path)


def unpacked(data):
    """The `File`s in an archive's bytes."""
    # A tar archive that ends with a zip archive looks like one, too.
    if tarfile.is_tarfile(io.BytesIO(data)):
        return list(_tarred(data))
    return list(_zipped(data))


def _zipped(data):
    archive = zipfile.ZipFile(io.BytesIO(data))
    entries = [info for info in archive.infolist() if not info.is_dir()]
    _measure(sum(info.file_size for info in entries), len(entries))
    for info in entries:
        name = info.filename
        if not info.flag_bits & 0x800:
            # Without the mark for UTF-8 it was decoded as a code page of DOS.
            try:
                name = name.encode("cp437").decode("utf-8")
            except UnicodeError:
                pass
        yield File(
            _parts(name),
            _member(archive, info),
            time.mktime((*info.date_time, 0, 0, -1)),
            trouble="it is locked with a password"
            if info.flag_bits & 1
            else _too_large(info.file_size),
        )


def _member(archive, info):
    def read_member():
        with archive.open(info) as file:
            return file.read(MAX_FILE + 1)

    return read_member


def _tarred(data):
    archive = tarfile.open(fileobj=io.BytesIO(data))
    entries, total = [], 0
    for info in archive:
        entries.append(info)
        total += info.size
        _measure(total, len(entries))
    for info in entries:
        if info.isfile():
            yield File(
                _parts(info.name),
                archive.extractfile(info).read,
                info.mtime,
                _too_large(info.size),
            )
        elif info.issym() or info.islnk():
            yield File(
                _parts(info.name),
                bytes,
                trouble="it is a link: put the file itself into the archive",
            )


def _measure(size, count):
    if size > MAX_TOTAL or count > MAX_ENTRIES:
        raise ValueError("it would unpack to an absurd size")


def _too_large(size):
    return "it is too large for a notebook" if size > MAX_FILE else ""


def _parts(name):
    parts = [
        part
        for part in re.split(r"[\\/]+", name)
        if part not in ("", ".", "..")
    ]
    return readable(parts) or ("unnamed",)


def readable(names):
    """Names on disk; those that are not UTF-8 are read as Windows text."""
    return tuple(
        name.encode(errors="surrogateescape").decode("cp1252", "replace")
        if re.search("[\udc80-\udcff]", name)
        else name
        for name in names
    )
