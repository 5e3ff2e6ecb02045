"""Attacks on the grader, each a cell of a notebook with a wrong answer.

Every one of them is a way in which a hostile notebook tries to gain a point,
to learn what it should not know, to get out, or to stop the batch.
`test_grading_attacks.py` runs them in the real sandbox.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Attack:
    """One attack.

    code: the cell; it runs before all answers
    answer: of `softmax`, wrong on purpose
    slow: whether it takes seconds to be stopped
    finds: text that would be in what the cell prints if it succeeded; the
        code has it in two parts, or a traceback would show it
    """

    kind: str
    name: str
    code: str
    answer: str = "def softmax(x, dim=-1):\n    return x * 0"
    finds: str = "GOTCHA"
    slow: bool = False


ATTACKS = []


def attack(kind, name, code, **more):
    ATTACKS.append(Attack(kind, name, code, **more))


# Patching what judges, where it is in the same process.

attack(
    "patching",
    "allclose",
    """\
import numpy as np, torch
np.allclose = torch.allclose = lambda *a, **k: True
np.array_equal = torch.equal = lambda *a, **k: True
np.testing.assert_allclose = lambda *a, **k: None
""",
)

attack(
    "patching",
    "the judgement",
    """\
import autograder.judging, autograder.exercise, autograder.observations
autograder.judging.judge = lambda *a, **k: 2.0
autograder.exercise.Property.judge = lambda *a, **k: None
autograder.observations.value_difference = lambda *a, **k: None
autograder.exercise.value_difference = lambda *a, **k: None
""",
)

attack(
    "patching",
    "check itself",
    """\
import autograder, autograder.checker
autograder.check = autograder.checker.check = lambda *a, **k: 2.0
check = autograder.check
""",
)

attack(
    "patching",
    "syntax trees",
    """\
import ast
class NoAssert(ast.NodeTransformer):
    def visit_Assert(self, node):
        return None
    def visit_Call(self, node):
        return ast.Constant(2.0)
get_ipython().ast_transformers.append(NoAssert())
""",
)

attack(
    "patching",
    "run_cell",
    """\
shell = get_ipython()
shell.run_cell = lambda *a, **k: type("R", (), {
    "error_before_exec": None, "error_in_exec": None, "success": True,
    "result": 2.0})()
""",
)

attack(
    "patching",
    "equality of numbers",
    """\
import torch
torch.Tensor.__eq__ = lambda *a: True
torch.Tensor.numpy = lambda self, *a, **k: __import__("numpy").ones(3)
float.__eq__
""",
    answer="""\
class Same(float):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0.0
    def __le__(self, other): return True
def softmax(x, dim=-1):
    return Same(1.0)""",
)

# Forging what is sent to the judge.

attack(
    "forging",
    "a full report on every descriptor",
    """\
import os, json, struct
text = json.dumps({"body": {"points": 2.0, "passed": True, "seen": "null"},
                   "arrays": []}).encode()
for number in range(3, 64):
    try:
        os.write(number, struct.pack(">I", len(text)) + text)
    except OSError:
        pass
""",
)

attack(
    "forging",
    "send replaced",
    slow=True,
    code="""\
import autograder.grading.session as session
session.send = lambda *a, **k: None
""",
)

attack(
    "forging",
    "points in the reply",
    """\
import autograder.grading.session as session
real = session.send
def send(connection, body, arrays=()):
    body = dict(body) if isinstance(body, dict) else body
    if isinstance(body, dict):
        body.update(points=2.0, max_points=2.0, passed=True, findings=[])
    real(connection, body, arrays)
session.send = send
""",
)

attack(
    "forging",
    "a pickle",
    slow=True,
    code="""\
import autograder.grading.session as session, pickle, os
class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/GOTCHA",)
data = pickle.dumps(Evil())
real = session._probe
def probe(shell, body, arrays, connection):
    connection.sendall(data * 100)
    return real(shell, body, arrays, connection)
session._probe = probe
""",
)

attack(
    "forging",
    "the check's metadata and points",
    """\
2.0
""",
    answer="""\
class Report(float):
    points = max_points = 2.0
    passed = True
    def __repr__(self): return "2.0"
def softmax(x, dim=-1):
    return Report(2.0)""",
)

attack(
    "forging",
    "an answer that never raises twice",
    """\
class Chameleon:
    shape = dtype = device = None
    def __getattr__(self, name): return Chameleon()
    def __call__(self, *a, **k): return Chameleon()
    def __eq__(self, other): return True
    def __bool__(self): return True
    def __iter__(self): return iter(())
""",
    answer="softmax = Chameleon()",
)

# Reading what judges: answers, expected values, the caller.

attack(
    "reading",
    "the reference",
    """\
import importlib, pathlib, sys
for name in ("solutions.ch1_self_attention", "solutions.answers"):
    try:
        importlib.import_module(name); print("GOT" "CHA")
    except ImportError:
        pass
import autograder
root = pathlib.Path(autograder.__file__).parent.parent
for top in root.iterdir():
    if top.name != ".venv":  # large, and without answers
        for path in top.rglob("ch*_*.py"):
            if "BEGIN SOLUTION" in path.read_text(errors="ignore"):
                print("GOT" "CHA", path)
print([p.name for p in root.iterdir() if p.name in (
    "solutions", "exercises")] and "GOT" "CHA")
""",
)

attack(
    "reading",
    "fresh answers by check",
    """\
from autograder import check
try:
    print("GOT" "CHA", str(check("softmax", softmax, fresh=True)))
except BaseException as error:
    print(type(error))
""",
    answer="def softmax(x, dim=-1):\n    return x * 0",
)

attack(
    "reading",
    "the stack and the heap",
    """\
import gc, sys
""",
    answer="""\
def softmax(x, dim=-1):
    import gc, sys
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()):
            if type(value).__name__ == "Standard":
                return value.want
        frame = frame.f_back
    for value in gc.get_objects():
        if type(value).__name__ == "Standard" and value.inputs:
            return value.want["one row"]["out"].data
    return x * 0""",
)

attack(
    "reading",
    "a hook before every cell",
    """\
seen = []
get_ipython().events.register(
    "pre_run_cell", lambda info: seen.append(info.raw_cell))
get_ipython().events.register(
    "post_run_cell", lambda result: print(
        "GOT" "CHA" if any("fresh" in text for text in seen) else ""))
""",
)

attack(
    "reading",
    "the environment and the command line",
    """\
import os, pathlib
text = repr(dict(os.environ))
for path in pathlib.Path("/proc").glob("[0-9]*/*"):
    if path.name in ("environ", "cmdline"):
        try:
            text += path.read_text(errors="replace")
        except OSError:
            pass
print("GOT" "CHA" if "AUTOGRADER_SEED" in text or "bwrap" in text else "")
""",
)

attack(
    "reading",
    "a transformer from a package",
    """\
try:
    from transformers import GPT2Model
    print("GOT" "CHA")
except ImportError:
    pass
""",
)

# Files of the grader, and of others.

attack(
    "files",
    "the gradebook",
    """\
import glob, os, pathlib, sqlite3
import autograder
root = pathlib.Path(autograder.__file__).parent.parent
paths = set(root.rglob("*.db")) | set(root.rglob("*.csv"))
paths |= {pathlib.Path(p) for p in glob.glob("/tmp/**", recursive=True)
          if p.endswith((".db", ".ipynb", ".csv"))}
paths = [p for p in paths if ".venv" not in p.parts]
print("GOT" "CHA" if paths else "", paths)
""",
)

attack(
    "files",
    "writing into the course and the packages",
    """\
import os, pathlib, autograder, torch, sys
for folder in (pathlib.Path(autograder.__file__).parent,
               pathlib.Path(autograder.__file__).parent / "checks",
               pathlib.Path(torch.__file__).parent,
               pathlib.Path(sys.executable).parent, "/usr/lib", "/etc", "/",
               "/dev", "/proc",
               pathlib.Path(autograder.__file__).parent / "tests"):
    try:
        path = pathlib.Path(folder) / "GOTCHA.py"
        path.write_text("x")
        print("GOT" "CHA", path)
    except OSError:
        pass
""",
)

# It tries the places where systems keep homes and secrets, whoever grades.
attack(
    "files",
    "homes and secrets",
    """\
import os, pathlib
for path in ("/root/.ssh", "/root/.bash_history", "/etc/shadow",
             "/etc/passwd", "/home", "/var/log", "/root/.config"):
    try:
        there = os.listdir(path) if os.path.isdir(path) else open(path).read()
        if there:
            print("GOT" "CHA", path)
    except OSError:
        pass
""",
)

attack(
    "files",
    "through descriptors that were left open",
    """\
import os
for number in range(3, 256):
    try:
        link = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        continue
    if not link.startswith(("socket:", "/tmp/", "/dev/null", "pipe:",
                            "anon_inode:", "/proc/")):
        print("GOT" "CHA", link)
""",
)

# The network.

attack(
    "network",
    "a host outside",
    """\
import socket
for address in (("1.1.1.1", 53), ("8.8.8.8", 443), ("192.168.0.1", 80)):
    try:
        socket.create_connection(address, timeout=0.5)
        print("GOT" "CHA", address)
    except OSError:
        pass
try:
    print("GOT" "CHA", socket.gethostbyname("example.org"))
except OSError:
    pass
""",
)

attack(
    "network",
    "services of this machine",
    """\
import socket
print("GOT" "CHA" if len(socket.if_nameindex()) > 1 else "")
for port in (22, 80, 443, 5432, 8000, 8080, 8786, 8888):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=0.2)
        print("GOT" "CHA", port)
    except OSError:
        pass
""",
)

# Staying after the end.

attack(
    "persistence",
    "files for the next notebook",
    """\
import os, pathlib
paths = [pathlib.Path(folder) / "leftover.txt" for folder in (
    "/tmp", "/dev/shm", "/var/tmp", ".", os.path.expanduser("~"))]
found = [path for path in paths if path.exists()]
for path in paths:
    try:
        path.write_text("x")
    except OSError:
        pass
print("GOT" "CHA" if found else "", found)
""",
)

attack(
    "persistence",
    "a process that stays",
    """\
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import signal
        for number in range(1, 32):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        time.sleep(987)
    os._exit(0)
""",
)

attack(
    "persistence",
    "modules and builtins",
    """\
import builtins, sys, torch
print("GOT" "CHA" if hasattr(builtins, "stayed") else "")
builtins.stayed = True
torch.exp = torch.ones_like
""",
)

# The warm process.

attack(
    "warm process",
    "its memory",
    """\
import os
for number in {os.getppid(), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10} - {
        os.getpid()}:
    try:
        with open(f"/proc/{number}/mem", "r+b"):
            print("GOT" "CHA", number)
    except OSError:
        pass
""",
)

attack(
    "warm process",
    "signals to everything",
    """\
import os, signal
for number in [os.getppid(), *range(2, 400)]:
    if number not in (0, os.getpid()):
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:
            pass
""",
)

attack(
    "warm process",
    "ptrace",
    """\
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for number in {os.getppid(), *range(2, 50)} - {os.getpid(), 0}:
    if libc.ptrace(16, number, 0, 0) == 0:
        print("GOT" "CHA", number)
""",
)

attack(
    "warm process",
    "namespaces and mounts",
    """\
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.umount2(b"/proc", 2) == 0:
    print("GOT" "CHA umount")
if libc.mount(b"tmpfs", b"/usr", b"tmpfs", 0, None) == 0:
    print("GOT" "CHA mount")
if libc.unshare(0x10000000) == 0:
    print("GOT" "CHA user namespace")
""",
)

# Too much of everything.

attack(
    "flood",
    "forks",
    slow=True,
    code="""\
import os
for _ in range(100_000):
    try:
        if os.fork() == 0:
            import time
            time.sleep(100)
    except OSError:
        break
""",
)

attack(
    "flood",
    "memory",
    slow=True,
    code="""\
blocks = []
try:
    while True:
        blocks.append(bytearray(2**26))
except MemoryError:
    print(len(blocks))
del blocks
""",
)

attack(
    "flood",
    "memory of many processes",
    slow=True,
    code="""\
import os
for _ in range(30):
    try:
        if os.fork() == 0:
            block = bytearray(b"x" * 2**28)
            import time
            time.sleep(100)
    except (OSError, MemoryError):
        break
""",
)

attack(
    "flood",
    "output",
    """\
import os, sys
for _ in range(2000):
    print("x" * 10_000)
    sys.stderr.write("y" * 10_000)
try:
    for _ in range(2000):
        os.write(1, b"z" * 10_000)
except OSError:
    pass
""",
)

attack(
    "flood",
    "the disk",
    slow=True,
    code="""\
try:
    with open("big", "wb") as file:
        while True:
            file.write(bytes(2**20))
except OSError:
    pass
try:
    for number in range(10**6):
        open(f"/tmp/{number}", "w").close()
except OSError:
    pass
""",
)

attack(
    "flood",
    "threads",
    slow=True,
    code="""\
import threading, time
try:
    for _ in range(10_000):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
except RuntimeError:
    pass
""",
)

# What comes back is meant to break the judge.

attack(
    "judge",
    "a huge array",
    "",
    answer="""\
def softmax(x, dim=-1):
    import torch
    return torch.zeros(2**24)""",
)

attack(
    "judge",
    "an array that broadcasts",
    "",
    answer="""\
def softmax(x, dim=-1):
    import torch
    return torch.zeros(1, 1).expand(30_000, 30_000)""",
)

attack(
    "judge",
    "deep and endless data",
    """\
deep = []
for _ in range(5000):
    deep = [deep]
loop = []
loop.append(loop)
""",
    answer="def softmax(x, dim=-1):\n    return [deep, loop]",
)

attack(
    "judge",
    "strange numbers",
    "",
    answer="""\
def softmax(x, dim=-1):
    return 10**5000 if dim == -1 else float('nan')""",
)

attack(
    "judge",
    "an endless message",
    slow=True,
    code="""\
import autograder.grading.session as session
def probe(shell, body, arrays, connection):
    import struct
    connection.sendall(struct.pack(">I", 2**22))
    while True:
        connection.sendall(b"[" * 2**16)
session._probe = probe
""",
)

attack(
    "judge",
    "a slow drip",
    slow=True,
    code="""\
import autograder.grading.session as session
def probe(shell, body, arrays, connection):
    import struct, time
    connection.sendall(struct.pack(">I", 2**20))
    while True:
        connection.sendall(b" ")
        time.sleep(0.2)
session._probe = probe
""",
)

attack(
    "judge",
    "arrays announced and not sent",
    slow=True,
    code="""\
import autograder.grading.session as session
def probe(shell, body, arrays, connection):
    import json, struct
    text = json.dumps({"body": {"seen": "null"}, "arrays": [
        ["float64", [2**40]], ["float64", [2**62, 4]]]}).encode()
    connection.sendall(struct.pack(">I", len(text)) + text)
    return {}, ()
session._probe = probe
""",
)

# Pages and tables.

attack(
    "page",
    "scripts in text, output and errors",
    """\
from IPython.display import HTML, Markdown, Javascript, display
display(HTML("<script>GOTCHA</script>"), Javascript("GOTCHA"))
print("<script>GOTCHA</script><img src=x onerror=GOTCHA>")
raise ValueError("<script>GOTCHA</script>")
""",
    answer="""\
def softmax(x, dim=-1):
    raise ValueError("<script>GOTCHA</script>")""",
    finds="<script>GOTCHA",
)

attack(
    "page",
    "a name that is a script",
    """\
class Evil:
    def __repr__(self): return "<svg onload=GOTCHA>"
Evil()
""",
    answer="""\
class Evil:
    def __repr__(self): return "<svg onload=GOTCHA>"
def softmax(x, dim=-1):
    return Evil()""",
    finds="<svg onload",
)

attack(
    "page",
    "a picture that is none",
    """\
class Evil:
    def _repr_png_(self): return b"x"
    def _repr_mimebundle_(self, **k):
        return {"image/png": "x' onerror='GOTCHA", "text/plain": "x"}
Evil()
""",
    finds="onerror='GOTCHA",
)
