"""The grader's end: a warm process, and sessions in it."""

import contextlib
import itertools
import os
import socket
import threading
import time

from autograder.grading.launch import WarmError, launch
from autograder.grading.sandbox import (
    PRIVATE,
    find_sandbox,
    hidden_folders,
    shown_folders,
    statement,
)
from autograder.grading.wire import ORDER, WireError, receive, send

START = 120  # seconds that importing may take on a busy machine
END = 10  # seconds in which a session must be gone after it was told to


class Warm:
    """A warm process, shared by the threads of this one.

    lessons: names of those whose notebooks will run, for which it prepares
    """

    def __init__(self, limits, require_sandbox=False, lessons=()):
        self.limits, self.lessons = limits, lessons
        self.sandbox = find_sandbox(require_sandbox)
        self._require_sandbox = require_sandbox
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._launched = None
        self._ready = False
        self._used = 0.0
        self.generation = 0  # counts the processes that were started
        self.told = ""  # `statement`, once it is known

    def start(self, launched=None):
        """Begin to start it; `session` waits until it is ready.

        launched: a process that somebody has started already
        raises WarmError: if it has ended already
        """
        self._launched = launched or launch(self._require_sandbox)
        self._ready = False
        self._used = time.monotonic()
        self.generation += 1
        try:
            send(self._control, self._settings())
        except WireError:
            raise self._failed() from None

    @property
    def process(self):
        """Its `Popen`."""
        return self._launched.process

    @property
    def _control(self):
        return self._launched.control

    def _settings(self):
        limits = self.limits
        return {
            "isolate": not os.environ.get("AUTOGRADER_NO_NAMESPACES"),
            "show": [
                str(path)
                for path in shown_folders()
                if any(path.is_relative_to(one) for one in PRIVATE)
            ],
            "hide": []
            if self.sandbox.prefix
            else list(map(str, hidden_folders())),
            "memory": limits.memory,
            "disk": limits.disk,
            "processes": limits.processes,
            "files": limits.files,
            "session_cpu": int(limits.notebook),
            "lessons": list(self.lessons),
        }

    def _wait(self):
        try:
            answer, _ = receive(self._control, START)
        except WireError:
            raise self._failed() from None
        self._control.settimeout(None)
        self._ready = True
        self.told = statement(self.sandbox, answer["isolated"])

    def _failed(self):
        """End what does not start; the error with its last words."""
        self._launched.words.seek(0)
        words = self._launched.words.read().decode(errors="replace").strip()
        self.close()
        return WarmError(
            "the process that runs notebooks does not "
            f"start: {words[-2000:] or 'no reason given'}"
        )

    def _be_ready(self):
        if self._ended():
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
            self._used = time.monotonic()
            number = next(self._numbers)
            order = [f"start {number}".ljust(ORDER).encode()]
            try:
                socket.send_fds(self._control, order, [theirs.fileno()])
            except OSError:  # it died a moment ago
                self.close()
                self._be_ready()
                socket.send_fds(self._control, order, [theirs.fileno()])
            # Here, since the next generation may begin once this is over.
            return Session(self, ours, number)

    def end(self, number):
        with self._lock, contextlib.suppress(OSError, AttributeError):
            self._control.sendall(f"end {number}".ljust(ORDER).encode())

    def gone(self, generation):
        """Whether the process of that generation has ended."""
        with self._lock:
            return self.generation != generation or self._ended()

    def _ended(self):
        return self._launched is None or self.process.poll() is not None

    def rest(self):
        """End it if no notebook can be running in it any more."""
        with self._lock:
            if time.monotonic() - self._used > 2 * self.limits.notebook:
                self.close()

    def kill(self):
        """End it; the next session starts another."""
        with self._lock:
            self.close()

    def close(self):
        """End it and every session in it."""
        if self._launched is not None:
            self._launched.close()
            self._launched = None


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
