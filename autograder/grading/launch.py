"""Starting a warm process.

It imports torch, which takes a second; what starts it here does not, so that
both can import it at the same time.
"""

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile

from autograder.grading.sandbox import Sandbox, environment, find_sandbox

# `main` looks for garbage again, once everything is imported.
START = """\
import gc, sys
gc.disable()
from autograder.grading.warm import main
main(int(sys.argv[2]))
"""


class WarmError(RuntimeError):
    """The warm process does not start; the text has its last words."""


@dataclasses.dataclass
class Launched:
    """A process that has been started, and that waits for its settings.

    control: the socket on which it is told what to do
    words: a file with what it prints
    """

    sandbox: Sandbox
    process: subprocess.Popen
    control: socket.socket
    words: object

    def close(self):
        """End it, and every process in it."""
        self.control.close()
        # Also bubblewrap's own child, which may not be told of its end yet.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.words.close()


def launch(require_sandbox=False):
    """Start a warm process; nobody waits until it is ready.

    raises NoSandboxError: if the sandbox is required and missing
    """
    sandbox = find_sandbox(require_sandbox)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    words = tempfile.TemporaryFile()
    with theirs:
        process = subprocess.Popen(
            [
                *sandbox.prefix,
                sys.executable,
                "-P",
                "-c",
                START,
                "autograder.grading.warm",
                str(theirs.fileno()),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            cwd="/",
            env=environment(),
            start_new_session=True,
        )
    return Launched(sandbox, process, ours, words)
