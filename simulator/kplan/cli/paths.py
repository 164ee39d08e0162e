"""Files that a command is to write: what is wrong with them is said before a minute is spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryFile

from kplan.errors import InputError
from kplan.files import check_replaceable


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path] = ()) -> None:
    """Raise InputError unless every output can be written without harm.

    Args:
        outputs: option -> the file it names, None where it is not given.
        inputs: files that the command reads, which it must not write over.
    """
    taken = {path.resolve(): "is read" for path in inputs}
    for option, path in outputs.items():
        if path is None:
            continue
        if not path.parent.is_dir():
            raise InputError(option, str(path), "its folder must exist", f"create {path.parent} first")
        check_replaceable(option, path)
        _try_writing(option, path, path.parent)
        if path.resolve() in taken:
            raise InputError(
                option, str(path), f"{taken[path.resolve()]} by the same command", "name another"
            )
        taken[path.resolve()] = f"is written as {option}"


def check_folder(option: str, folder: Path) -> None:
    """Raise InputError unless ``folder`` can be written to, or be made."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(option, str(folder), f"{there} is a file", "name a folder")
    _try_writing(option, folder, there)


def _try_writing(option: str, path: Path, folder: Path) -> None:
    try:
        with TemporaryFile(dir=folder):  # permissions alone tell root and read-only disks little
            pass
    except OSError as error:
        bound = f"its folder is not writable ({error.strerror})"
        raise InputError(option, str(path), bound, "name another") from error
