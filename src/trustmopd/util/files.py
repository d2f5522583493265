"""Files and folders that are either whole or not there; JSON with a schema version."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A file to write in the target's folder, renamed when the block ends well: a reader, or a killed run, never sees
    half a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return Path(path)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: str | Path, payload: dict[str, Any], *, schema_version: int = 1) -> Path:
    return write_text(
        path,
        json.dumps({"schema_version": schema_version, **payload}, indent=2, ensure_ascii=False, default=str) + "\n",
    )


def without_nan(value: Any) -> Any:
    """Data with null for what is not a finite number: JSON has neither NaN nor infinity, and most readers refuse a
    file that holds one."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(each) for key, each in value.items()}
    return [without_nan(each) for each in value] if isinstance(value, list | tuple) else value


def read_json(path: str | Path, *, what: str, remedy: str, schema_versions: Sequence[int] = (1,)) -> dict[str, Any]:
    """Read what `write_json` wrote; `what` and `remedy` make the error say what the file is and what to do."""
    path = Path(path)
    try:
        payload = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{what} {path} does not exist. {remedy}") from None
    except OSError as error:
        reason = "it is a folder, not a file" if path.is_dir() else error.strerror
        raise OSError(f"{what} {path} cannot be read: {reason}. {remedy}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{what} {path} is not whole JSON ({error}): it was cut short or edited. {remedy}") from None
    found = payload.pop("schema_version", None) if isinstance(payload, dict) else None
    if found not in schema_versions:
        readable = ", ".join(map(str, schema_versions))
        raise ValueError(f"{what} {path} has schema_version {found!r}; this release reads {readable}. {remedy}")
    return payload


def check_writable(folder: str | Path, option: str = "output") -> None:
    """Check that a folder can be created or written to; nothing is left behind. Permissions do not tell: a disk may be
    read-only, and in /proc nobody can make a folder."""
    folder = Path(folder)
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        found = "a broken link" if there.is_symlink() else "a file, not a folder"
        raise ValueError(f"{option} {folder}: {there} is {found}. Choose another folder.")
    try:
        TemporaryDirectory(prefix=".trustmopd-", dir=there).cleanup()
    except OSError as error:
        raise ValueError(
            f"{option} {folder}: {there} cannot be written to ({error.strerror}). Choose another folder, or ask for "
            "access."
        ) from None


def check_free(folder: str | Path, *, overwrite: bool = False) -> None:
    """Refuse a folder that holds something, before work is done for it."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file. Choose another folder.")
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise FileExistsError(
            f"{folder} is not empty. Choose another folder, or replace it with --overwrite (in Python: overwrite=True)."
        )


def meant_here(path: str) -> bool:
    """Whether a path is one on this disk, even if nothing is there: a Hub id has two parts at most. A typo
    should not be looked up on the Hub, which takes half a minute to fail without a network."""
    given = Path(path)
    return given.is_absolute() or path.startswith((".", "~")) or len(given.parts) > 2


@contextmanager
def locked(folder: str | Path, remedy: str) -> Iterator[None]:
    """One process at a time writes to a folder. The lock ends with the process, in whatever way."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        try:
            import fcntl  # which Windows lacks

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(f"{folder} is being written to by another process. {remedy}") from None
        except (ImportError, OSError):
            pass  # a system without such locks: there, starting it once is up to the user
        yield


@contextmanager
def whole_folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write into that takes its name only when the block ends well. An older one is replaced last: the
    folder that a link points to, and not the link."""
    path = Path(path).resolve()
    check_free(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if path.is_dir():
            old = path.with_name(f".{path.name}.{os.getpid()}.old")
            path.rename(old)
            partial.rename(path)
            shutil.rmtree(old)
        else:
            partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
