"""The book and JupyterLab are served together, and end together."""

import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request

import psutil
import pytest

from autograder import serve

pytestmark = pytest.mark.slow


class Server:
    """serve.py in a process of its own, with all that it has printed."""

    def __init__(self, root, *options):
        script = root / "autograder" / "serve.py"
        self.output = root / "output.txt"
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", script, "--no-browser", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def text(self):
        return self.output.read_text()

    def wait_for(self, pattern, seconds=60):
        """The match of a pattern in the output, as soon as it is there."""
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.text())):
            assert time.monotonic() < deadline, self.text()
            ended = self.process.poll() is not None
            assert not ended or re.search(pattern, self.text()), self.text()
            time.sleep(0.1)
        return match

    def addresses(self):
        """Of the book and of JupyterLab, once both are announced."""
        self.wait_for("Ctrl-C ends it")
        return re.findall(r"(?:Read|Do) +(http://\S+)", self.text())


@pytest.fixture
def course(tmp_path):
    """A course with a book of one page."""
    (tmp_path / "_build" / "html").mkdir(parents=True)
    (tmp_path / "_build" / "html" / "index.html").write_text("the book")
    (tmp_path / "exercises").mkdir()
    (tmp_path / "autograder").mkdir()
    shutil.copy(serve.__file__, tmp_path / "autograder")
    return tmp_path


@pytest.fixture
def start(course):
    """Start servers that end with the test."""
    servers = []

    def start(*options):
        servers.append(Server(course, *options))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.terminate()
            server.process.wait(30)


def get(url):
    with urllib.request.urlopen(url, timeout=20) as reply:
        return reply.status, reply.read().decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def family(server):
    """All processes that serve.py has started: JupyterLab, its kernels."""
    return psutil.Process(server.process.pid).children(recursive=True)


def start_kernel(lab):
    """Ask JupyterLab for a kernel, as opening a notebook does."""
    url = lab.replace("/lab/tree/exercises", "/api/kernels")
    request = urllib.request.Request(url, data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=20) as reply:
        assert reply.status == 201


def test_both_answer_beside_taken_ports_and_ctrl_c_ends_both(start):
    with socket.socket() as taken, socket.socket() as taken_lab:
        ports = []
        for listener in (taken, taken_lab):
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            ports.append(listener.getsockname()[1])
        server = start("--port", str(ports[0]), "--lab-port", str(ports[1]))
        book, lab = server.addresses()
    assert f":{ports[0]}/" not in book
    assert f":{ports[1]}/" not in lab
    assert get(book) == (200, "the book")
    status, page = get(lab)
    assert status == 200
    assert "JupyterLab" in page
    token = lab.partition("token=")[2]
    assert len(token) >= 32
    with pytest.raises(urllib.error.HTTPError, match="403"):
        get(lab.replace("/lab/tree", "/api/contents").replace(token, "x"))

    start_kernel(lab)
    started = family(server)
    assert len(started) >= 2
    assert not any(token in " ".join(one.cmdline()) for one in started)

    # An impatient person presses twice.
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(20) == 0
    assert "Traceback" not in server.text()
    assert not psutil.wait_procs(started, timeout=5)[1]
    for url in (book, lab):
        with pytest.raises(urllib.error.URLError, match="refused"):
            get(url)


def stand_in(course, code):
    """Let `python -m jupyterlab` run this code instead, in the course."""
    (course / "jupyterlab.py").write_text(textwrap.dedent(code))


def test_a_jupyterlab_that_dies_is_reported_and_the_book_stays(course, start):
    stand_in(
        course,
        """
        import http.server, sys

        class Once(http.server.SimpleHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()

        port = int("".join(sys.argv).partition("ServerApp.port=")[2][:5])
        http.server.HTTPServer(("127.0.0.1", port), Once).handle_request()
        sys.exit("out of memory, say")
        """,
    )
    server = start("--port", str(free_port()), "--lab-port", str(free_port()))
    server.wait_for("The book is still served")
    assert "JupyterLab ended (exit code 1)" in server.text()
    assert "  | out of memory, say" in server.text()
    book, _ = server.addresses()
    assert get(book) == (200, "the book")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0


def test_a_jupyterlab_that_cannot_start_is_reported(course, start):
    stand_in(course, "raise SystemExit('no room for settings')")
    server = start("--port", str(free_port()))
    assert server.process.wait(60) == 1
    assert "JupyterLab ended (exit code 1)" in server.text()
    assert "  | no room for settings" in server.text()


def test_a_signal_during_the_start_ends_all(start):
    server = start("--port", str(free_port()))
    server.wait_for("JupyterLab is starting")
    while not (started := family(server)):
        time.sleep(0.05)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0
    assert started and not psutil.wait_procs(started, timeout=5)[1]


def test_a_book_that_is_not_built_names_the_command(course):
    (course / "_build" / "html" / "index.html").unlink()
    assert "make book" in serve.main([], root=course)


@pytest.mark.parametrize("option", ["--port", "--lab-port"])
@pytest.mark.parametrize("port", ["-1", "0", "65536", "70000", "x"])
def test_what_is_no_port_is_one_sentence(option, port, capsys):
    with pytest.raises(SystemExit) as ended:
        serve.parse([f"{option}={port}"])
    assert ended.value.code == 2
    *_, told = capsys.readouterr().err.splitlines()
    assert f"argument {option}: " in told and repr(port) in told


@pytest.mark.parametrize("port", [1, 8000, 65535])
def test_any_port_may_be_asked_for(port):
    options = serve.parse(["--port", str(port), "--lab-port", str(port)])
    assert options.port == options.lab_port == port


def test_no_free_port_is_one_sentence(course, monkeypatch):
    def taken(port):
        raise OSError("taken")

    with pytest.raises(OSError, match="no port from 8000 to 8050 is free"):
        serve.bind(8000, taken)


def test_a_browser_opens_only_where_it_can_be_seen(monkeypatch):
    monkeypatch.setattr(serve.sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not serve.has_display()
    monkeypatch.setenv("DISPLAY", ":0")
    assert serve.has_display()
