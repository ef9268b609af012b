"""`python -m ccplane`: the `ccplane` command."""

import sys

from ccplane.algorithm import command


def main() -> int:
    """Runs the command with this process's arguments and returns its exit code."""
    return command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
