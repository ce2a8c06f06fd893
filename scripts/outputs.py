"""What the scripts share of their output: pictures' names, legends, whole files, readers that have gone."""

import glob
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable, Iterator, List

#: of the pictures that the scripts write
ENDINGS = (".png", ".svg", ".pdf")


def check_file(flag: str, file: str) -> None:
    """``ValueError`` before the work where a file could not be written; *flag* is what the user gave it by."""
    folder = Path(file).parent
    if not folder.is_dir():
        raise ValueError(f"{flag} {file}: there is no folder {folder}")
    if Path(file).is_dir():
        raise ValueError(f"{flag} {file} is a folder")
    if not os.access(file if Path(file).exists() else folder, os.W_OK):  # /dev/stdout may be, in a folder that may not
        raise ValueError(f"{flag} {file}: cannot be written there")


def check_picture(flag: str, file: str) -> None:
    """``ValueError`` before the work where a picture could not be written."""
    if not file.lower().endswith(ENDINGS):
        raise ValueError(f"{flag} {file} must end with one of {', '.join(ENDINGS)}")
    check_file(flag, file)


def told_apart(files: List[str], *names: Callable[[Path], str]) -> List[str]:
    """For a legend: by the first of *names* that is another for each of the files, or else as they were given."""
    for name in names:
        found = [name(Path(file).resolve()) for file in files]
        if len(set(found)) == len(found):
            return found
    return files


def alive(number: str) -> bool:
    """Whether there may be a process of this number."""
    try:
        os.kill(int(number), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except OSError:  # of another user
        pass
    return True


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Where to write what is to be *file*: in its place once it is whole, so that a full disk leaves what was there.

    Raises:
        OSError: with the file's name, which Python does not give where a disk is full.
    """
    part = file.with_name(f"{file.name}.{os.getpid()}.part")  # another process may write the same
    for left in file.parent.glob(f"{glob.escape(file.name)}.*.part"):
        if not alive(left.suffixes[-2][1:]):  # it was killed meanwhile
            left.unlink(missing_ok=True)
    try:
        yield part
        os.replace(part, file)
    except OSError as error:
        if error.filename:
            raise
        raise type(error)(error.errno, error.strerror, str(file)) from None
    finally:
        part.unlink(missing_ok=True)


def say(text: str) -> None:
    """A line to standard output at once, in one piece, since others print at the same time; whoever reads it may have
    gone, or the disk be full: the work goes on."""
    with suppress(OSError):
        print(f"{text}\n", end="", flush=True)


def reader_gone() -> None:
    """After a ``BrokenPipeError``, as ``less`` and ``head`` cause when they had enough: the rest goes nowhere, so that
    Python does not complain once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
