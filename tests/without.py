"""`python tests/without.py A,B train …`: charcnn as if the modules A and B were not installed."""

import sys
from importlib.machinery import PathFinder


class Without(PathFinder):
    """Finds no module whose name is among `missing`."""

    missing: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname.split(".")[0] in cls.missing else super().find_spec(fullname, path, target)


def hide(*names):
    """From now on they are not found."""
    Without.missing = frozenset(names)
    sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]


if __name__ == "__main__":
    hide(*sys.argv[1].split(","))
    from charcnn.__main__ import main

    sys.exit(main(sys.argv[2:]))
