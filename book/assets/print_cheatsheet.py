"""Print the built cheat sheet to _build/cheatsheet.pdf, with Chromium."""

import functools
import http.server
import pathlib
import shutil
import sys
import threading

from playwright.sync_api import sync_playwright

BUILT = pathlib.Path(__file__).parents[2] / "_build"
NAMES = ("chromium", "chromium-browser", "google-chrome")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def main():
    """Print the page; a sentence that says what is missing, or None."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        return f"No browser found ({', '.join(NAMES)}): install Chromium."
    if not (BUILT / "html" / "book" / "cheatsheet.html").exists():
        return "The book is not built: run make book."
    handler = functools.partial(Quiet, directory=BUILT / "html")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        print_page(browser, f"http://127.0.0.1:{port}/book/cheatsheet.html")
        server.shutdown()
    print(f"Wrote {BUILT / 'cheatsheet.pdf'}")


def print_page(browser, address):
    with sync_playwright() as playwright:
        # Chromium refuses its own sandbox to root, as whom containers run.
        running = playwright.chromium.launch(
            executable_path=browser, args=["--no-sandbox"]
        )
        page = running.new_page()
        page.goto(address, wait_until="networkidle")  # formulas are drawn
        page.pdf(path=BUILT / "cheatsheet.pdf", prefer_css_page_size=True)
        running.close()


if __name__ == "__main__":
    sys.exit(main())
