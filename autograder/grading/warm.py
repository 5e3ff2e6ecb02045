"""A process that has everything imported and forks one child a notebook.

Run by `launch.py`, inside the sandbox where there is one.
It never computes, so that its children may.

A notebook has two processes: the keeper, which runs our code only and ends
everything when it is told to, and under it the session, in which the
learner's code runs. Where the system allows, the session is the first process
of namespaces of its own: it sees no other process, no network, and an empty
temporary folder.
"""

import contextlib
import ctypes
import gc
import os
import pathlib
import resource
import select
import signal
import socket
import tempfile

from autograder.grading.sandbox import PRIVATE
from autograder.grading.session import make_shell, serve, warm_up
from autograder.grading.wire import ORDER, receive, send

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC = 0x20000, 0x4000000, 0x8000000
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8
SET_DEATH_SIGNAL, SET_DUMPABLE = 1, 4
SET_SUBREAPER, SET_NO_NEW_PRIVILEGES = 36, 38
MOUNT_PRIVATE, MOUNT_BIND = 0x44000, 0x5000  # recursively
LOOK = 0.25  # seconds between looks at a session's memory
TOGETHER = 2  # times the memory of one process that all may have together
WORK = "work"  # the folder, in a fresh temporary one, where cells run


def main(descriptor):
    """Serve requests until the grader goes away.

    descriptor: of the socket on which they come
    """
    control = socket.socket(fileno=descriptor)
    shell = make_shell()
    settings, _ = receive(control, None)  # a large class is read first
    warm_up(shell, settings["lessons"])
    gc.freeze()  # children that collect garbage need not copy all pages
    gc.enable()
    LIBC.prctl(SET_SUBREAPER, 1, 0, 0, 0)
    # No child may look into this process, even under the same user.
    LIBC.prctl(SET_DUMPABLE, 0, 0, 0, 0)
    settings["isolate"] = _can_isolate(settings)
    send(control, {"ready": True, "isolated": settings["isolate"]})
    control.setblocking(True)
    keepers = {}
    while True:
        ready, _, _ = select.select([control], [], [], 0.5)
        _reap(keepers, settings)
        if not ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, ORDER, 1)
        if len(data) < ORDER:  # the grader is gone
            for keeper in keepers.values():
                with contextlib.suppress(OSError):
                    os.kill(keeper, signal.SIGTERM)
            os._exit(0)
        order, number = data.decode().split()
        if order == "start":
            _start(control, shell, settings, keepers, number, descriptors[0])
        elif number in keepers:
            with contextlib.suppress(OSError):
                os.kill(keepers[number], signal.SIGTERM)


def _start(control, shell, settings, keepers, number, descriptor):
    child = os.fork()
    if child == 0:
        try:
            control.close()
            _keep(socket.socket(fileno=descriptor), shell, settings)
        except BaseException as error:
            os.write(2, f"keeper: {error!r}\n".encode())
        finally:
            os._exit(0)
    os.close(descriptor)
    keepers[number] = child


def _reap(keepers, settings):
    """Forget ended keepers; end what a murdered one has left behind."""
    ended = set()
    with contextlib.suppress(ChildProcessError):
        while child := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(child)
    for number, keeper in list(keepers.items()):
        if keeper in ended:
            del keepers[number]
    if not settings["isolate"]:
        _kill_children(keep=set(keepers.values()))


def _kill_children(keep=frozenset()):
    """End the processes whose parent is this one."""
    for child in _children(os.getpid()):
        if child not in keep:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)


def _children(process):
    """The processes that one has started and that still run."""
    found = []
    for path in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _keep(connection, shell, settings):
    """The keeper: start the session, watch it, leave nothing running."""
    watched = [signal.SIGCHLD, signal.SIGTERM]
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    LIBC.prctl(SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    LIBC.prctl(SET_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        if settings["isolate"]:
            _isolate()
        session = os.fork()
        if session == 0:
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
                _be_session(connection, shell, settings, folder)
            finally:
                os._exit(0)
        with contextlib.suppress(ChildProcessError):
            _watch(session, watched, settings)
            # What the session started and left; nothing, if it was the first
            # process of a namespace.
            while not settings["isolate"]:
                _kill_children()
                os.waitpid(-1, 0)


def _watch(session, watched, settings):
    """Wait for a session's end; end it when told to or when it is too big."""
    while True:
        told = signal.sigtimedwait(watched, LOOK)
        if told:
            over = told.si_signo == signal.SIGTERM
        else:
            most = TOGETHER * settings["memory"]
            over = _memory(session, settings) > most
        if over:
            os.kill(session, signal.SIGKILL)
        while child := os.waitpid(-1, os.WNOHANG)[0]:
            if child == session:
                return


def _memory(session, settings):
    """Bytes that a session and all that it started have for themselves."""
    if settings["isolate"]:
        # Once the session has mounted its own /proc, that one is seen here,
        # too: it lists the session's processes and not the keeper.
        if os.path.exists("/proc/self"):
            return 0
        members = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    else:
        members = [session]
        for member in members:
            members += _children(member)
    return sum(map(_own_memory, members))


def _own_memory(process):
    with contextlib.suppress(OSError, ValueError):
        text = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
        return 1024 * sum(
            int(line.split()[1])
            for line in text.splitlines()
            if line.startswith("Private_")
        )
    with contextlib.suppress(OSError, ValueError):
        # It forbids a closer look, so all that it has counts.
        text = pathlib.Path(f"/proc/{process}/statm").read_text()
        return int(text.split()[1]) * resource.getpagesize()
    return 0


def _be_session(connection, shell, settings, folder):
    if settings["isolate"]:
        folder = "/tmp"
        _mount_own(settings)
    os.environ.update(HOME=folder, TMPDIR=folder)
    tempfile.tempdir = None
    _limit(settings)
    serve(connection, shell, f"{folder}/{WORK}")


def _isolate():
    """Enter namespaces of one's own; processes forked next are in them."""
    user, group = os.getuid(), os.getgid()
    LIBC.prctl(SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self is not ours
    if LIBC.unshare(
        NEW_USER | NEW_PIDS | NEW_MOUNTS | NEW_IPC | NEW_NETWORK | NEW_HOSTNAME
    ):
        raise OSError(ctypes.get_errno(), "unshare")
    pathlib.Path("/proc/self/setgroups").write_text("deny")
    pathlib.Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    pathlib.Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _mount_own(settings):
    """A fresh /tmp, /dev/shm and /proc; then give up all power to mount."""
    _mount(None, "/", None, MOUNT_PRIVATE, None)
    options = f"size={settings['disk']},nr_inodes=4096,mode=1777"
    shown = {path: os.open(path, os.O_PATH) for path in settings["show"]}
    for path in PRIVATE:
        if os.path.isdir(path):
            _mount("tmpfs", path, "tmpfs", NOSUID | NODEV, options)
    for path, descriptor in shown.items():
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", path, None, MOUNT_BIND, None)
        os.close(descriptor)
    _mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC, None)
    for path in settings["hide"]:
        if os.path.isdir(path):
            flags = NOSUID | NODEV | READ_ONLY
            _mount("tmpfs", path, "tmpfs", flags, "size=4k")
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/sys/user/max_user_namespaces").write_text("0")
    LIBC.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    LIBC.capset(header, (ctypes.c_uint32 * 6)())


def _mount(source, path, kind, flags, options):
    told = [
        None if text is None else text.encode()
        for text in (source, path, kind, options)
    ]
    if LIBC.mount(told[0], told[1], told[2], ctypes.c_ulong(flags), told[3]):
        raise OSError(ctypes.get_errno(), f"mount {path}")


def _can_isolate(settings):
    """Whether this system lets a session have namespaces of its own."""
    if not settings["isolate"]:
        return False
    keeper = os.fork()
    if keeper == 0:
        try:
            _isolate()
            session = os.fork()
            if session == 0:
                try:
                    _mount_own(settings)
                    os._exit(0)
                finally:
                    os._exit(1)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(session, 0)[1]))
        finally:
            os._exit(1)
    return os.waitpid(keeper, 0)[1] == 0


def _limit(settings):
    """Bound what the session and all it starts may use."""
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    memory = used * resource.getpagesize() + settings["memory"]
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_NPROC: settings["processes"]
        + (0 if settings["isolate"] else _tasks_of_user()),
        resource.RLIMIT_FSIZE: settings["disk"],
        resource.RLIMIT_NOFILE: settings["files"],
        resource.RLIMIT_CPU: settings["session_cpu"],
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == -1 else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error, not an end


def _tasks_of_user():
    """How many threads this process's user has: the limit counts them all."""
    count = 0
    for task in pathlib.Path("/proc").glob("[0-9]*/task/[0-9]*"):
        with contextlib.suppress(OSError):
            count += task.stat().st_uid == os.getuid()
    return count
