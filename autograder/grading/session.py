"""What runs next to a learner's code: cells, and probes of their results.

Everything in this process is in the learner's hands. It answers what it is
asked; whether the answers are any good is judged elsewhere.
"""

import builtins
import contextlib
import functools
import io
import json
import math
import os
import pathlib
import re
import resource
import signal
import socket
import sys
import time

import numpy as np
import torch
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.process import system as run_command
from traitlets.config import Config

from autograder.checker import look
from autograder.exercise import exercises, find
from autograder.grading import colab
from autograder.grading.wire import (
    MAX_ERROR,
    MAX_NAME,
    MAX_OUTPUT,
    MAX_PICTURE,
    MAX_SHOWN,
    MAX_SHOWN_BYTES,
    WireError,
    receive,
    send,
    unpack_inputs,
)
from autograder.observations import pack

# Magics of a kernel that have nothing to do here.
KERNEL_MAGICS = ("autosave", "connect_info", "pdb", "qtconsole", "store")
CONDAS = ("conda", "mamba", "micromamba")
# What terminals read as colours and movements.
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78])")
WAITING = 0.1  # share of the time below which a cell does not compute
TICK = 0.01  # seconds between looks at a cell whose time is nearly up
GRACE = 2  # seconds after which a probe's process is killed for good
MUCH_MEMORY = 1024 * 2**20  # bytes that an answer should not leave behind
# Where a name that means something else changes what other answers do.
SHARED = (
    builtins,
    math,
    np,
    torch,
    torch.nn.functional,
    torch.Tensor,
    torch.nn.Module,
)


class _Hook(DisplayHook):
    """Keeps what a cell's last line evaluates to, instead of printing it."""

    made = ()

    def start_displayhook(self):
        return None

    def write_output_prompt(self):
        return None

    def write_format_data(self, format_dict, md_dict=None):
        self.made.append({"kind": "result", "data": _shown(format_dict)})

    def finish_displayhook(self):
        return None


class _Publisher(DisplayPublisher):
    """Keeps what a cell displays."""

    made = ()

    def publish(self, data, metadata=None, **kwargs):
        self.made.append({"kind": "display", "data": _shown(data)})

    def clear_output(self, wait=False):
        self.made.clear()


def _shown(data):
    """What is kept of a rich output: text, and a picture of some size."""
    kept = {"text/plain": str(data.get("text/plain", ""))[:MAX_OUTPUT]}
    picture = data.get("image/png")
    if isinstance(picture, str) and len(picture) <= MAX_PICTURE:
        kept["image/png"] = picture
    return kept


def _affordable(made):
    """What of a cell's rich outputs one message carries, the first ones."""
    left, kept = MAX_SHOWN_BYTES, []
    for each in made[:MAX_SHOWN]:
        data = {}
        for kind, text in each["data"].items():
            size = len(json.dumps(text))
            if size <= left:
                left -= size
                data[kind] = text
        kept.append({**each, "data": data})
    return kept


class _Shell(InteractiveShell):
    displayhook_class = _Hook
    display_pub_class = _Publisher

    def enable_gui(self, gui=None):
        """There are no windows, so nothing has to wait for their events."""

    def enable_matplotlib(self, gui=None):
        """Keep figures as pictures, whichever window is asked for."""
        return super().enable_matplotlib("inline")

    def system(self, cmd):
        """Run a command as a kernel does, unless it installs something."""
        # Not by the parent's method, since that puts in what its caller
        # sees, which would be the names of this one.
        cmd = self.var_expand(cmd, depth=1)
        told = colab.told_of_installing(cmd)
        if told:
            print(told)
        self.user_ns["_exit_code"] = 0 if told else run_command(cmd)

    def run_line_magic(self, magic_name, line, _stack_depth=1):
        """Run a magic; say so where it comes from a package that is missing.

        Formatters and loggers that somebody has at home are no reason to
        lose what stands below them.
        """
        try:
            # One deeper, or names in the line are looked up here.
            return super().run_line_magic(magic_name, line, _stack_depth + 1)
        except UsageError:
            if self.find_line_magic(magic_name):
                raise
        except ModuleNotFoundError:
            if magic_name != "load_ext":
                raise
        print(f"Left out: no package here has %{magic_name} {line}".rstrip())
        return None


def make_shell():
    """An IPython as in a kernel, without history, prompts and colours."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.banner1 = ""
    config.InteractiveShell.cache_size = 100
    shell = _Shell.instance(config=config)
    shell.display_formatter.active_types = ["text/plain", "image/png"]
    for name in KERNEL_MAGICS:
        shell.register_magic_function(_ignore, magic_name=name)
    for name in CONDAS:
        shell.register_magic_function(
            functools.partial(_conda, shell, name), magic_name=name
        )
    return shell


def _conda(shell, name, line):
    # IPython's own refuse to run where conda has not made the environment.
    shell.system(f"{name} {line}")


def warm_up(shell, names):
    """Do once what every first call of a child would have to do again.

    names: the lessons whose notebooks will run
    """
    torch.set_num_threads(1)  # more would hang the children
    shell.run_cell("None", store_history=False)
    leaf = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    torch.softmax(leaf @ leaf, -1).exp().sum().backward()
    torch.ones(1, device="meta") + 1  # loads a second's worth of torch
    for name in names:
        for exercise in exercises(name).values():
            look(exercise, _echo, exercise.visible_inputs())


def _echo(*args, **kwargs):
    return args[0] if args else None


class _Capped(io.RawIOBase):
    """Bytes written, up to a limit; the rest is dropped."""

    def __init__(self):
        self.data = bytearray()

    def writable(self):
        return True

    def fileno(self):
        return 1

    def write(self, data):
        left = 4 * MAX_OUTPUT - len(self.data)
        if left > 0:
            self.data += bytes(data[:left])
        return len(data)


def _stream():
    raw = _Capped()
    return raw, io.TextIOWrapper(
        io.BufferedWriter(raw), "utf-8", errors="replace", write_through=True
    )


class CellTimeout(KeyboardInterrupt):
    """A cell or a first try ran longer than it may."""


def serve(connection, shell, folder):
    """Answer requests about one notebook until the other side is gone."""
    file = _settle(folder)
    shell.user_ns["_dh"][:] = [os.getcwd()]  # where `%cd -` leads back to
    while True:
        try:
            body, arrays = receive(connection, None)
        except WireError:
            return
        if body["do"] == "run":
            send(connection, _run(shell, body, file))
        elif body["do"] == "probe":
            send(connection, *_probe(shell, body, arrays, connection))
        else:
            return


def _settle(folder):
    """Make the process as a notebook expects it.

    returns: the file to which the process's own output goes
    """
    torch.set_num_threads(1)
    # More threads would hang the processes that are forked from this one.
    torch.set_num_threads = torch.set_num_interop_threads = _ignore
    builtins.input = _no_input
    sys.modules.pop("getpass", None)
    import getpass

    getpass.getpass = _no_input
    colab.install()
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    sys.path.insert(0, "")
    file = os.open(
        pathlib.Path(folder).parent / ".output",
        os.O_RDWR | os.O_CREAT | os.O_APPEND,
        0o600,
    )
    os.dup2(file, 1)
    os.dup2(file, 2)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    return file


def _ignore(*args, **kwargs):
    return None


def _no_input(*args, **kwargs):
    __tracebackhide__ = True
    raise RuntimeError(
        "nobody is there to answer input() when a notebook is graded: "
        "write the value into the cell instead"
    )


def _run(shell, body, file):
    """Run a cell; what it put out, how it ended, and what it defined."""
    made = []
    shell.displayhook.made = shell.display_pub.made = made
    raw, stream = _stream()
    with (
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
    ):
        try:
            with _alarm(body["seconds"], most=body.get("most")):
                result = shell.run_cell(body["source"], store_history=True)
            error = result.error_before_exec or result.error_in_exec
        except BaseException as caught:
            error = caught
        with contextlib.suppress(Exception):
            stream.flush()
    text = bytes(raw.data).decode(errors="replace")
    with contextlib.suppress(OSError):
        text += os.pread(file, MAX_OUTPUT, 0).decode(errors="replace")
        os.truncate(file, 0)
    told = None
    if error is not None:
        told = {
            "kind": type(error).__name__[:MAX_NAME],
            "text": _text(error)[:MAX_ERROR],
            "late": isinstance(error, CellTimeout),
            "module": str(getattr(error, "name", "") or "")[:MAX_NAME]
            if isinstance(error, ImportError)
            else "",
        }
    return {
        "text": ESCAPES.sub("", text)[:MAX_OUTPUT],
        "shown": _affordable(made),
        "error": told,
    }


def _text(error):
    try:
        return str(error)
    except Exception as another:
        return f"(its text raises {type(another).__name__})"


@contextlib.contextmanager
def _alarm(seconds, rang=None, most=None):
    """Interrupt what runs after some seconds, and again if it goes on.

    seconds: on the clock; of processor time where `most` is given
    rang: a list that is no longer empty once it has been interrupted
    most: seconds on the clock, for what a busy machine keeps waiting
    """
    left = _left(seconds, most or seconds)
    over = False

    def ring(number, frame):
        __tracebackhide__ = True
        if over:
            return  # it rang while the alarm was being switched off
        more = left()
        if more > 0:
            signal.setitimer(signal.ITIMER_REAL, max(more, TICK), 0.5)
            return
        if rang is not None:
            rang.append(number)
        raise CellTimeout(f"stopped after {seconds:.3g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _left(seconds, most):
    """A clock that starts now: how many seconds its caller still has.

    It has so many seconds of processor time, and `most` on the clock; but if
    it sleeps instead of computing, there is nothing to wait for.
    """
    began, worked = time.monotonic(), time.process_time()

    def left():
        on_clock = time.monotonic() - began
        work = time.process_time() - worked
        if on_clock >= seconds and work < WAITING * on_clock:
            return 0
        return min(seconds - work, most - on_clock)

    return left


def _probe(shell, body, arrays, connection):
    """Try an answer.

    It is tried in this process, which is quick, or, if it needs too long for
    that or ends it, in one of its own.

    returns: the reply as (body, arrays): {"seen": text, …, "changed": whether
        it has changed what other answers see}, {"late": True}, {"missing":
        True}, or, from a process of its own, {"died": number of the signal
        that ended it, or 0}
    """
    if body["alone"]:
        return _probe_alone(shell, body, arrays, connection)
    names = [dict(each) for each in _shared(shell)]
    process = _process()
    late = []
    try:
        with _alarm(body["seconds"], late):
            reply, arrays = _observed(shell, body, arrays)
    except CellTimeout:
        pass
    if late:
        return {"late": True}, ()
    changed = any(
        now.get(name, now) is not value
        for now, then in zip(_shared(shell), names, strict=True)
        for name, value in then.items()
    )
    return {**reply, "changed": changed or process != _process()}, arrays


def _shared(shell):
    """The names that answers share. One that is new changes nothing: modules
    are imported when they are first used."""
    return [*map(vars, SHARED), shell.user_ns]


def _process():
    """What else answers share: folder, threads, limits, memory."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return (
        os.getcwd(),
        len(os.listdir("/proc/self/task")),
        sys.getrecursionlimit(),
        pages * resource.getpagesize() > MUCH_MEMORY,
    )


def _probe_alone(shell, body, arrays, connection):
    """Try an answer in a process of its own."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            connection.close()
            cpu = body["cpu"]
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + GRACE))
            send(theirs, *_observed(shell, body, arrays))
        finally:
            os._exit(0)
    theirs.close()
    try:
        return receive(ours, body["seconds"])
    except WireError:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
    finally:
        ours.close()
        with contextlib.suppress(OSError):
            ended, status = os.waitpid(child, 0)
    return {"died": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}, ()


def _observed(shell, body, arrays):
    """What an answer does on the inputs, as a reply."""
    name = body["name"]
    _, exercise = find(name)
    if body["visible"]:
        inputs = exercise.visible_inputs()
    else:
        inputs = unpack_inputs(body["inputs"], arrays)
    if name not in shell.user_ns:
        return {"missing": True}, ()
    observation = look(exercise, shell.user_ns[name], inputs)
    text, arrays = pack(observation.pop("seen"))
    return {"seen": text, **observation}, arrays
