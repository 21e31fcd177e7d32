"""Exit codes of commands: every expected error is one line on standard error and an exit code, never a traceback.

0: success. 1: failure, with the reason on standard error. 2: wrong command line. 130: interrupted.
"""

import os
import signal
import sys
from collections.abc import Callable

from lakestream.cli.output.text import escaped
from lakestream.errors import LakestreamError


def run_and_exit_status(run: Callable[[], int]) -> int:
    """Runs a command and returns its exit code."""
    try:
        code = run()
        sys.stdout.flush()
        return code
    except SystemExit as ended:  # argparse: --help, or a wrong command line that it has reported
        return ended.code if isinstance(ended.code, int) else 2
    except LakestreamError as error:
        return fail(str(error), 1)
    except BrokenPipeError:
        # The reader (`head`, a pager) has closed the pipe. Python must not flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return fail(str(error), 1)
    except KeyboardInterrupt:
        return 130


def exit_reason(code: int) -> str:
    """Returns the exit code of a child process, or the signal that killed it, as a field of a log line."""
    return f"killed_by={signal.Signals(-code).name}" if code < 0 else f"exit_code={code}"


def fail(message: str, code: int) -> int:
    print(f"lakestream: {escaped(' '.join(message.split()))}", file=sys.stderr)
    return code
