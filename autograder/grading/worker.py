"""The grader's end: a warm process, and sessions in it."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

from autograder.course import ROOT
from autograder.grading.sandbox import (
    HIDDEN,
    environment,
    find_sandbox,
    statement,
)
from autograder.grading.wire import ORDER, WireError, receive, send

START = 120  # seconds that importing may take on a busy machine
END = 10  # seconds in which a session must be gone after it was told to


class WarmError(RuntimeError):
    """The warm process does not start; the text has its last words."""


class Warm:
    """A warm process, shared by the threads of this one."""

    def __init__(self, limits, require_sandbox=False):
        self.limits = limits
        self.sandbox = find_sandbox(require_sandbox)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._process = None
        self._ready = False
        self.generation = 0  # counts the processes that were started
        self.told = ""  # `statement`, once it is known

    def start(self):
        """Begin to start it; `session` waits until it is ready."""
        self._control, theirs = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_STREAM
        )
        self._words = tempfile.TemporaryFile()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *self.sandbox.prefix,
                    sys.executable,
                    "-P",
                    "-m",
                    "autograder.grading.warm",
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                cwd="/",
                env=environment(),
                start_new_session=True,
            )
        self._ready = False
        self.generation += 1
        send(self._control, self._settings())

    def _settings(self):
        limits = self.limits
        return {
            "isolate": not os.environ.get("AUTOGRADER_NO_NAMESPACES"),
            "hide": []
            if self.sandbox.prefix
            else [str(ROOT / name) for name in HIDDEN],
            "memory": limits.memory,
            "disk": limits.disk,
            "processes": limits.processes,
            "files": limits.files,
            "cpu": int(limits.notebook),
        }

    def _wait(self):
        try:
            answer, _ = receive(self._control, START)
        except WireError:
            self._words.seek(0)
            words = self._words.read().decode(errors="replace").strip()
            self.close()
            raise WarmError(
                "the process that runs notebooks does not "
                f"start: {words[-2000:] or 'no reason given'}"
            ) from None
        self._control.settimeout(None)
        self._ready = True
        self.told = statement(self.sandbox, answer["isolated"])

    def _be_ready(self):
        if self._process is None or self._process.poll() is not None:
            self.close()
            self.start()
        if not self._ready:
            self._wait()

    def wait(self):
        """Wait until it is ready.

        raises WarmError: if it does not start
        """
        with self._lock:
            self._be_ready()

    def session(self):
        """A new session, in which nothing is defined."""
        ours, theirs = socket.socketpair()
        with self._lock, theirs:
            self._be_ready()
            number = next(self._numbers)
            order = [f"start {number}".ljust(ORDER).encode()]
            try:
                socket.send_fds(self._control, order, [theirs.fileno()])
            except OSError:  # it died a moment ago
                self.close()
                self._be_ready()
                socket.send_fds(self._control, order, [theirs.fileno()])
        return Session(self, ours, number)

    def end(self, number):
        with self._lock, contextlib.suppress(OSError, AttributeError):
            self._control.sendall(f"end {number}".ljust(ORDER).encode())

    def gone(self, generation):
        """Whether the process of that generation has ended."""
        with self._lock:
            return (
                self.generation != generation
                or self._process is None
                or self._process.poll() is not None
            )

    def kill(self):
        """End it; the next session starts another."""
        with self._lock:
            self.close()

    def close(self):
        """End it and every session in it."""
        if self._process is None:
            return
        self._control.close()
        self._process.kill()
        self._process.wait()
        self._words.close()
        self._process = None


class Session:
    """One notebook's process."""

    def __init__(self, warm, connection, number):
        self._warm, self._number = warm, number
        self._connection = connection
        self._generation = warm.generation

    @property
    def orphaned(self):
        """Whether its warm process is gone, which may be another's doing."""
        return self._warm.gone(self._generation)

    def ask(self, body, arrays=(), *, seconds):
        """What the session answers.

        raises WireError: if it is dead, silent, or talks nonsense
        """
        self._connection.settimeout(seconds)
        send(self._connection, body, arrays)
        return receive(self._connection, seconds)

    def close(self):
        """End it, with all that it started."""
        self._warm.end(self._number)
        # The last process that holds the other end is the keeper, and it
        # goes when everything else is gone.
        deadline = time.monotonic() + END
        with self._connection as connection:
            try:
                connection.settimeout(END)
                while connection.recv(2**16):
                    if time.monotonic() > deadline:
                        raise TimeoutError
            except TimeoutError:
                self._warm.kill()
            except OSError:
                pass
