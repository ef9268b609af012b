"""`python -m ccplane`: the `ccplane` command."""

import signal
import sys

from ccplane.algorithm import command


def main() -> int:
    """Runs the command with this process's arguments and returns its exit code."""
    # As in the command's own binary, Ctrl-C is the subcommand's, or ends the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
