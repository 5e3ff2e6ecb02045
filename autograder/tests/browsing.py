"""What the tests in a browser share: the browser, and what looks wrong.

Playwright drives a Chromium of the machine. A page is judged by what it
computes (colours, widths, typeset formulas), not by its source.
"""

import contextlib
import os

from playwright.sync_api import sync_playwright

PATIENCE = 60_000  # milliseconds: a busy machine is slow, not broken
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "is_mobile": True,
    "has_touch": True,
}
LOOKS = {
    "light": {**DESKTOP, "color_scheme": "light"},
    "dark": {**DESKTOP, "color_scheme": "dark"},
    "phone": {**PHONE, "color_scheme": "light"},
}


@contextlib.contextmanager
def chromium(path):
    """A headless Chromium, closed at the end."""
    # Chromium refuses its own sandbox to root, as whom containers run.
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox"] if root else [],
            timeout=PATIENCE,
        )
        yield running
        running.close()


@contextlib.contextmanager
def visiting(running, site, **options):
    """A new page, and the faults that its console and network show.

    site: the address that all requests must go to
    """
    context = running.new_context(**options)
    context.set_default_timeout(PATIENCE)
    faults = []

    def request(route):
        if route.request.url.startswith(site):
            route.continue_()
        else:
            faults.append(f"asks another host: {route.request.url}")
            route.abort()

    def console(message):
        if message.type == "error":
            faults.append(f"console: {message.text}")

    def response(answer):
        if answer.status >= 400:
            faults.append(f"{answer.status} for {answer.url}")

    context.route("**/*", request)  # data: and blob: addresses stay inside
    page = context.new_page()
    page.on("console", console)
    page.on("pageerror", lambda error: faults.append(f"script: {error}"))
    page.on("response", response)
    yield page, faults
    context.close()


# Texts whose colour is too near to what lies behind them: WCAG's ratio is
# 4.5 for text and 3 for large text. `within` is a selector.
PALE_TEXTS = r"""
(within) => {
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  canvas.width = canvas.height = 1;
  const known = new Map();
  const rgba = (colour) => {  // of any CSS notation; alpha from 0 to 1
    if (!known.has(colour)) {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = colour;
      pen.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
      known.set(colour, [r, g, b, a / 255]);
    }
    return known.get(colour);
  };
  const over = (top, below) => [0, 1, 2]
    .map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = (colour) => colour.slice(0, 3)
    .map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  // Filled cells of a drawing that lie under one of its texts, topmost first.
  const cells = (text) => {
    if (!text.ownerSVGElement || text.matches(".ta-halo")) return [];
    const { x, y, width, height } = text.getBoundingClientRect();
    const under = (rect) => {
      const box = rect.getBoundingClientRect();
      return rect.compareDocumentPosition(text) & 4 &&  // text comes after
        box.left <= x + width / 2 && x + width / 2 <= box.right &&
        box.top <= y + height / 2 && y + height / 2 <= box.bottom;
    };
    return [...text.ownerSVGElement.querySelectorAll("rect")]
      .filter(under).reverse().map((rect) => {
        const { fill, fillOpacity } = getComputedStyle(rect);
        const [r, g, b, a] = fill === "none" ? [0, 0, 0, 0] : rgba(fill);
        return [r, g, b, a * fillOpacity];
      });
  };
  const behind = (element) => {
    const layers = cells(element);
    let opaque = layers.some((layer) => layer[3] === 1);
    for (let at = element; at && !opaque; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      layers.push(colour);
      opaque = colour[3] === 1;
    }
    return layers.reverse().reduce((below, top) => over(top, below),
      [255, 255, 255, 1]);
  };
  const opacity = (element) => {
    let product = 1;
    for (let at = element; at; at = at.parentElement) {
      product *= Number(getComputedStyle(at).opacity);
    }
    return product;
  };

  const found = [];
  for (const root of document.querySelectorAll(within)) {
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
      const words = walk.currentNode.textContent.trim();
      const element = walk.currentNode.parentElement;
      if (!words || element.closest("script, style, mjx-container")) continue;
      if (!element.checkVisibility({
        opacityProperty: true, visibilityProperty: true,
      })) continue;
      const box = element.getBoundingClientRect();
      if (box.width < 2 || box.height < 2) continue;  // for screen readers
      const style = getComputedStyle(element);
      const svg = element.namespaceURI.endsWith("svg");
      const ink = [...rgba(svg ? style.fill : style.color)];
      const paper = behind(element);
      ink[3] *= opacity(element);
      const [a, b] = [light(over(ink, paper)), light(paper)];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.6 && style.fontWeight >= 700);
      // A tick or a cross is a picture, for which 3 is enough as well.
      const sign = !/[\p{L}\p{N}]/u.test(words);
      if (ratio < (large || sign ? 3 : 4.5)) {
        found.push(`contrast ${ratio.toFixed(2)}: ${words.slice(0, 60)} ` +
          `(${element.tagName.toLowerCase()}.${element.className})`);
      }
    }
  }
  return [...new Set(found)];
}
"""

# Text and formulas that are cut off where nothing can be moved sideways.
CUT_OFF = r"""
() => {
  const cuts = (element) =>
    ["hidden", "clip"].includes(getComputedStyle(element).overflowX);
  const words = [...document.body.querySelectorAll("*")].filter((element) =>
    !element.closest(".math") && element.clientWidth > 2 && cuts(element) &&
    element.scrollWidth > element.clientWidth + 1 &&
    element.textContent.trim());
  // MathJax hides a second form of each formula, which is wider.
  const all = [...document.querySelectorAll(".math")];
  const formulas = all.filter((element) => {
    const drawn = element.querySelector("mjx-math");
    const right = (part) => part.getBoundingClientRect().right;
    return drawn && cuts(element) && right(drawn) > right(element) + 1.5;
  });
  return [...words, ...formulas].map((element) =>
    `is cut off: ${element.textContent.trim().slice(0, 60)}`);
}
"""

# What reaches beyond the right edge, if the page can be moved sideways.
OVERFLOW = r"""
() => {
  const room = document.documentElement;
  const wide = Math.max(room.scrollWidth, document.body.scrollWidth);
  if (wide <= room.clientWidth) return [];
  const scrolls = (element) => {
    for (let at = element.parentElement; at; at = at.parentElement) {
      if (at === document.body) return false;
      if (getComputedStyle(at).overflowX !== "visible") return true;
    }
  };
  const outside = [...document.body.querySelectorAll("*")].filter((element) =>
    element.getBoundingClientRect().right > room.clientWidth + 1 &&
    !scrolls(element));
  const names = outside.slice(0, 3).map((element) =>
    `${element.tagName.toLowerCase()}.${element.className}: ` +
    element.textContent.trim().slice(0, 40));
  return [`is ${wide} wide on ${room.clientWidth}: ${names.join("; ")}`];
}
"""
