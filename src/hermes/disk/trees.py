"""Folders that somebody else made, of any depth and with any permissions, walked and removed.

`shutil.rmtree` and, before Python 3.12, `os.walk` call themselves for every level: a thousand nested folders
end them with RecursionError. And a path has at most 4,096 characters. Links are never followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def walk(top: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Like `os.walk`: each folder with the names of its folders, which may be taken out, and of its files.

    Folders that cannot be read, and those whose path is too long for the system, are left out.
    """
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                kinds = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError:
            continue
        names = [name for name, is_folder in kinds if is_folder]
        yield folder, names, [name for name, is_folder in kinds if not is_folder]
        waiting += [folder / name for name in names]


def remove_tree(top: Path) -> bool:
    """Removes a folder with all that is in it; False: something could not be removed.

    Nested folders are moved up before they are emptied, so that no path is long.
    """
    waiting = [top]
    prefix, count = f".removed-{os.urandom(8).hex()}", 0
    while waiting:
        folder = waiting.pop()
        with suppress(OSError):
            folder.chmod(stat.S_IRWXU)
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                with suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        path.unlink()
                        continue
                    path.chmod(stat.S_IRWXU)
                    if folder != top:
                        count += 1
                        path = path.rename(top / f"{prefix}-{count}")
                    waiting.append(path)
        if folder != top:
            with suppress(OSError):
                folder.rmdir()
    with suppress(OSError):
        top.rmdir()
    return not os.path.lexists(top)
