"""Serve the book and JupyterLab side by side, until Ctrl-C.

Run by `make start` and `make lab`. Nobody but this machine can reach either:
both listen on 127.0.0.1, and JupyterLab asks for a token that is drawn anew
each time.

Run: python -P autograder/serve.py [--port N] [--lab-port N] [--no-lab]
                                   [--no-book] [--no-browser]
"""

import argparse
import http.server
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
TRIES = 50  # ports tried after the one asked for
PATIENCE = 60  # seconds that JupyterLab may take to answer at first
GRACE = 10  # seconds that it may take to end its kernels and itself


def main(arguments=None, root=ROOT):
    """Serve until a signal comes; None, or the text of what went wrong."""
    options = parse(arguments)
    site = root / "_build" / "html"
    if options.book and not (site / "index.html").exists():
        return "The book is not built yet: run `make book`, or `make start`."
    stop = catch_signals()
    book = lab = None
    try:
        if options.book:
            book = Book(site, options.port)
            print(f"The book is served at {book.url}", flush=True)
        if options.lab:
            print("JupyterLab is starting ...", flush=True)
            lab = Lab(root, options.lab_port)
            problem = lab.wait(stop)
            if problem:
                return problem
        if not stop:
            announce(book, lab)
            if options.browser and has_display():
                webbrowser.open((book or lab).url)
        while not stop:
            time.sleep(0.2)
            if lab and lab.ended():
                problem, lab = lab.obituary(), None
                if not book:
                    return problem
                print(f"{problem}\nThe book is still served at {book.url}")
        print("\nStopping.", flush=True)
    except OSError as error:
        return f"Cannot serve: {error}."
    finally:
        # A second Ctrl-C must not leave a JupyterLab behind.
        for number in signals():
            signal.signal(number, signal.SIG_IGN)
        for server in (lab, book):
            if server:
                server.close()


def parse(arguments):
    """The command line's options."""
    parser = argparse.ArgumentParser(
        description="Serve the book and JupyterLab until Ctrl-C."
    )
    parser.add_argument(
        "--port",
        type=port_number,
        default=8000,
        help="for the book (%(default)s)",
    )
    parser.add_argument(
        "--lab-port",
        type=port_number,
        default=8888,
        help="for JupyterLab (%(default)s)",
    )
    for name, what in [
        ("book", "do not serve the book"),
        ("lab", "do not start JupyterLab"),
        ("browser", "open no browser window"),
    ]:
        parser.add_argument(
            f"--no-{name}", action="store_false", dest=name, help=what
        )
    options = parser.parse_args(arguments)
    if not (options.book or options.lab):
        parser.error("--no-book and --no-lab leave nothing to serve")
    return options


def port_number(text):
    """A port's number, as text on the command line."""
    if text.isdecimal() and 1 <= int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"{text!r} is no port: choose a number from 1 to 65535"
    )


def signals():
    """What ends us: Ctrl-C, a polite kill, the terminal's window closing."""
    names = ["SIGINT", "SIGTERM", "SIGHUP"]  # Windows knows no SIGHUP
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def catch_signals():
    """A list that is empty until a signal comes."""
    stop = []
    for number in signals():
        signal.signal(number, lambda number, frame: stop.append(number))
    return stop


def announce(book, lab):
    """Print where everything is."""
    rule = "-" * 68
    lines = ["", rule]
    if book:
        lines.append(f"  Read  {book.url}")
    if lab:
        lines.append(f"  Do    {lab.url}")
    print("\n".join([*lines, rule, "  Ctrl-C ends it.", ""]), flush=True)


def has_display():
    """Whether a browser window could be seen."""
    if sys.platform == "darwin" or os.name == "nt":
        return "SSH_CONNECTION" not in os.environ
    return bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())


def bind(port, make):
    """What make gives for the first port from port on that is free."""
    for number in range(port, min(port + TRIES, 65535) + 1):
        try:
            return make(number)
        except OSError as error:
            problem = error
    raise OSError(f"no port from {port} to {number} is free ({problem})")


class Pages(http.server.SimpleHTTPRequestHandler):
    """A folder's files, without a line in the terminal for each."""

    def log_message(self, format, *arguments):
        pass

    def end_headers(self):
        # A rebuilt book shows at the next reload.
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()


class Book:
    """The built book, served by a thread of ours."""

    def __init__(self, site, port):
        def handler(*arguments):
            return Pages(*arguments, directory=str(site))

        def make(number):
            return http.server.ThreadingHTTPServer((HOST, number), handler)

        self.server = bind(port, make)
        self.url = f"http://{HOST}:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Lab:
    """A JupyterLab in a process of its own, opened at the exercises."""

    def __init__(self, root, port):
        self.port = bind(port, free)
        self.log = root / "_build" / "jupyter" / "lab.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        token = secrets.token_hex(16)
        self.url = f"http://{HOST}:{self.port}/lab/tree/exercises"
        self.url += f"?token={token}"
        command = [sys.executable, "-m", "jupyterlab", "--no-browser"]
        command += [f"--ServerApp.ip={HOST}", f"--ServerApp.port={self.port}"]
        command += ["--ServerApp.port_retries=0"]
        command += [f"--ServerApp.root_dir={root}"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command += ["--allow-root"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=root,
                env=environment(self.log.parent, token),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Else Ctrl-C reaches it too, and it asks whether we mean it.
                start_new_session=True,
            )

    def wait(self, stop):
        """Wait for an answer; None, or the text of what went wrong."""
        deadline = time.monotonic() + PATIENCE
        while not stop and not self.answers():
            if self.ended():
                return self.obituary()
            if time.monotonic() > deadline:
                return (
                    f"JupyterLab gave no answer in {PATIENCE} seconds."
                    f"{self.last_lines()}"
                )
            time.sleep(0.2)

    def answers(self):
        try:
            url = f"http://{HOST}:{self.port}/api"
            # No proxy stands between this machine and itself.
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({})
            )
            with opener.open(url, timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def ended(self):
        return self.process.poll() is not None

    def obituary(self):
        """How JupyterLab ended, with the last lines of its log."""
        code = self.process.returncode
        if code == 0:
            return "JupyterLab was shut down."
        return f"JupyterLab ended (exit code {code}).{self.last_lines()}"

    def last_lines(self):
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join(
            [" Its last lines:", *(f"  | {line}" for line in lines)]
        )

    def close(self):
        """End JupyterLab, which ends its kernels."""
        self.process.terminate()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            # Kernels see that their server is gone, and end.
            self.process.kill()
            self.process.wait()


def environment(folder, token):
    """The environment of a JupyterLab whose settings may be in folder."""
    # It would begin by asking whether it may fetch news from elsewhere.
    page = folder / "labconfig" / "page_config.json"
    page.parent.mkdir(exist_ok=True)
    news = "@jupyterlab/apputils-extension:announcements"
    page.write_text(json.dumps({"disabledExtensions": {news: True}}))
    path = os.environ.get("JUPYTER_CONFIG_PATH")
    return {
        **os.environ,
        "JUPYTER_CONFIG_PATH": os.pathsep.join(
            filter(None, [path, str(folder)])
        ),
        # Here, and not on the command line, `ps` does not show it.
        "JUPYTER_TOKEN": token,
    }


def free(port):
    """The port, if nothing listens on it; OSError otherwise."""
    with socket.socket() as probe:
        if os.name != "nt":  # there it would mean sharing the port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
    return port


if __name__ == "__main__":
    sys.exit(main())
