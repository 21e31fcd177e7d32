"""How a command ends: every expected error is one line on standard error and an exit code, never a stack trace.

0: done. 1: it could not be done, standard error says why. 2: the command line is wrong. 130: interrupted.
"""

import os
import sys
from collections.abc import Callable

from lakestream.errors import LakestreamError


def outcome_of(run: Callable[[], int]) -> int:
    """Run a command, and give its exit code."""
    try:
        code = run()
        sys.stdout.flush()
        return code
    except SystemExit as ended:  # argparse: --help, or a wrong command line that it has already reported
        return ended.code if isinstance(ended.code, int) else 2
    except LakestreamError as error:
        return fail(str(error), 1)
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough. Nothing may be flushed into the closed pipe on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return fail(str(error), 1)
    except KeyboardInterrupt:
        return 130


def fail(message: str, code: int) -> int:
    print(f"lakestream: {' '.join(message.split())}", file=sys.stderr)
    return code
