// What every interactive figure shares: elements, planes, handles, controls.
// The file is one expression, so that nothing of it becomes global.
({
  // A new element inside `parent`; SVG inside SVG, HTML elsewhere.
  add(parent, tag, attributes = {}, text = "") {
    const space = "http://www.w3.org/2000/svg";
    const inside = tag === "svg" || parent.namespaceURI === space;
    const element = inside
      ? document.createElementNS(space, tag)
      : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      element.setAttribute(key, value);
    }
    element.textContent = text;
    parent.append(element);
    return element;
  },

  panel(parent, title) {
    const box = this.add(parent, "div", { class: "ta-panel" });
    this.add(box, "p", { class: "ta-title" }, title);
    return box;
  },

  // A square plane from -reach to reach with a grid line at each integer.
  plane(parent, title, reach) {
    const size = 300;
    const edge = 14;
    const scale = (size - 2 * edge) / (2 * reach);
    const at = (value) => size / 2 + value * scale;
    const svg = this.add(this.panel(parent, title), "svg", {
      viewBox: `0 0 ${size} ${size}`,
    });
    for (let n = -Math.floor(reach); n <= reach; n++) {
      const line = { class: n === 0 ? "ta-axis" : "ta-grid" };
      const [low, high] = [edge, size - edge];
      this.add(svg, "line",
        { ...line, x1: at(n), x2: at(n), y1: low, y2: high });
      this.add(svg, "line",
        { ...line, x1: low, x2: high, y1: at(n), y2: at(n) });
      // At the edge, where no point hides them.
      const number = { "text-anchor": "middle",
        style: "font-size: 10px; opacity: 0.7" };
      const words = String(n).replace("-", "\u2212");
      this.add(svg, "text", { ...number, x: at(n), y: size - 3 }, words);
      this.add(svg, "text", { ...number, x: 7, y: at(-n) + 4 }, words);
    }
    return {
      svg,
      reach,
      place: (point) => [at(point[0]), at(-point[1])],
      point(event) {
        const matrix = svg.getScreenCTM().inverse();
        const spot = new DOMPoint(event.clientX, event.clientY)
          .matrixTransform(matrix);
        return [
          (spot.x - size / 2) / scale,
          (size / 2 - spot.y) / scale,
        ];
      },
    };
  },

  // A point that mouse, finger and arrow keys move. `point` is changed.
  // A ring may lie over a square, and both can still be seen.
  handle(plane, point, { label, name, colour, shape, moved }) {
    const group = this.add(plane.svg, "g", {
      class: "ta-handle",
      tabindex: 0,
      role: "button",
    });
    this.add(group, "circle", { class: "ta-reach", r: 17 });
    const fill = `var(--ta-${colour})`;
    if (shape === "square") {
      this.add(group, "rect",
        { x: -6, y: -6, width: 12, height: 12, fill });
    } else {
      this.add(group, "circle",
        { r: 10, fill: "none", stroke: fill, "stroke-width": 3 });
    }
    const spot = shape === "square" ? { x: 10, y: -8 } : { x: 12, y: 20 };
    this.add(group, "text", { class: "ta-halo", ...spot }, label);
    const show = () => {
      const [x, y] = plane.place(point);
      group.setAttribute("transform", `translate(${x} ${y})`);
      const where = point.map((c) => this.fixed(c, 1)).join(", ");
      group.setAttribute(
        "aria-label",
        `${name} at ${where}; arrow keys move it`,
      );
    };
    const move = (next) => {
      next.forEach((value, axis) => {
        const kept = Math.max(-plane.reach, Math.min(plane.reach, value));
        point[axis] = Math.round(kept * 20) / 20;
      });
      show();
      moved();
    };
    group.addEventListener("pointerdown", (event) => {
      group.setPointerCapture(event.pointerId);
      group.focus();
      event.preventDefault();
    });
    group.addEventListener("pointermove", (event) => {
      if (group.hasPointerCapture(event.pointerId)) move(plane.point(event));
    });
    const steps = {
      ArrowLeft: [-0.1, 0],
      ArrowRight: [0.1, 0],
      ArrowUp: [0, 0.1],
      ArrowDown: [0, -0.1],
    };
    group.addEventListener("keydown", (event) => {
      const step = steps[event.key];
      if (!step) return;
      event.preventDefault();
      move([point[0] + step[0], point[1] + step[1]]);
    });
    show();
    return group;
  },

  button(parent, text, pressed) {
    const button = this.add(parent, "button", { type: "button" }, text);
    button.addEventListener("click", pressed);
    return button;
  },

  // A labelled slider; `words(value)` is what stands beside it.
  range(parent, text, { min, max, step, value }, words, moved) {
    const label = this.add(parent, "label", {}, text);
    const input = this.add(label, "input",
      { type: "range", min, max, step, value });
    const output = this.add(label, "output");
    const show = () => {
      output.textContent = words(Number(input.value));
      input.setAttribute("aria-valuetext", output.textContent);
    };
    input.addEventListener("input", () => {
      show();
      moved();
    });
    show();
    return {
      get value() { return Number(input.value); },
      set value(next) { input.value = next; show(); },
    };
  },

  // A place for controls that belong together, under a name.
  group(parent, text) {
    const set = this.add(parent, "fieldset");
    this.add(set, "legend", {}, text);
    return this.add(set, "div", { class: "ta-row" });
  },

  // One choice among several; returns a function that gives the choice.
  choice(parent, text, options, chosen, moved) {
    const row = this.group(parent, text);
    const name = `ta-${Math.random().toString(36).slice(2)}`;
    const inputs = options.map(([value, words]) => {
      const label = this.add(row, "label");
      const input = this.add(label, "input",
        { type: "radio", name, value });
      label.append(words);
      input.checked = value === chosen;
      input.addEventListener("change", moved);
      return input;
    });
    return () => inputs.find((input) => input.checked).value;
  },

  // Rows of label, score, bar and weight; returns a function that fills them.
  bars(parent, labels, heads) {
    const box = this.add(parent, "div", { class: "ta-bars" });
    const number = { class: "ta-number" };
    if (heads) {
      this.add(box, "span", {}, heads[0]);
      this.add(box, "span", number, heads[1]);
      this.add(box, "span");
      this.add(box, "span", number, heads[2]);
    }
    const rows = labels.map((label) => {
      this.add(box, "span", {}, label);
      const score = this.add(box, "span", number);
      const track = this.add(box, "span", { class: "ta-track" });
      const fill = this.add(track, "span", { class: "ta-fill" });
      fill.style.display = "block";
      return { score, fill, weight: this.add(box, "span", number) };
    });
    return (scores, weights) => rows.forEach((row, i) => {
      row.score.textContent = this.fixed(scores[i], 2);
      row.fill.style.width = `${100 * weights[i]}%`;
      row.weight.textContent = weights[i].toFixed(3);
    });
  },

  // A number with so many digits and, below 0, a real minus.
  fixed: (value, digits) => value.toFixed(digits).replace("-", "\u2212"),

  // The style of a fill whose strength is a share from 0 to 1.
  shade: (share) => `fill-opacity: calc(${share} * var(--ta-fullest));`,

  softmax(scores) {
    const top = Math.max(...scores);
    const powers = scores.map((score) => Math.exp(score - top));
    const total = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / total);
  },
})
