// One query against a few keys: move them, see weights and output.
// data.presets: [{label, query, keys, values}], points in the plane.
(root, data, ui) => {
  const subscript = (n) => String.fromCharCode(0x2080 + n);
  let sharpness = 1;

  // Corners of the smallest polygon around the points, in order.
  const hull = (points) => {
    const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const turn = (o, a, b) =>
      (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
    const half = (list) => {
      const kept = [];
      for (const point of list) {
        while (
          kept.length > 1 && turn(kept.at(-2), kept.at(-1), point) <= 0
        ) kept.pop();
        kept.push(point);
      }
      return kept.slice(0, -1);
    };
    return [...half(sorted), ...half(sorted.reverse())];
  };

  const start = (preset) => {
    root.replaceChildren();
    const query = [...preset.query];
    const keys = preset.keys.map((key) => [...key]);
    const buttons = ui.add(root, "div", { class: "ta-row" });
    for (const other of data.presets) {
      ui.button(buttons, other.label, () => {
        sharpness = 1;
        start(other);
        root.querySelectorAll("button")[data.presets.indexOf(other)].focus();
      });
    }
    const planes = ui.add(root, "div", { class: "ta-row" });
    const left = ui.plane(planes, "Query and keys: drag them", 2.5);
    const right = ui.plane(planes, "Values and output", 1.5);
    const arrow = ui.add(left.svg, "line",
      { stroke: "var(--ta-blue)", "stroke-width": 2 });

    ui.add(right.svg, "polygon", {
      points: hull(preset.values).map(right.place).join(" "),
      fill: "var(--ta-soft)",
      stroke: "var(--ta-blue)",
    });
    preset.values.forEach((value, i) => {
      const [x, y] = right.place(value);
      ui.add(right.svg, "rect", {
        x: x - 5, y: y - 5, width: 10, height: 10,
        fill: "var(--ta-orange)",
      });
      ui.add(right.svg, "text", { class: "ta-halo", x: x + 8, y: y - 8 },
        `v${subscript(i + 1)}`);
    });
    const out = ui.add(right.svg, "circle",
      { r: 8, fill: "var(--ta-green)" });
    const outLabel = ui.add(right.svg, "text",
      { class: "ta-halo", "text-anchor": "end" }, "output");

    const slider = ui.add(root, "div", { class: "ta-row" });
    const range = ui.range(slider, "Multiply the scaled scores by ",
      { min: 0, max: 10, step: 0.1, value: sharpness },
      (value) => ui.fixed(value, 1), () => update());
    const fill = ui.bars(root, keys.map((_, i) => `key ${i + 1}`),
      ["", "score", "weight"]);
    const line = ui.add(root, "p", { "aria-live": "polite" });

    const update = () => {
      sharpness = range.value;
      const scores = keys.map((key) => sharpness *
        (query[0] * key[0] + query[1] * key[1]) / Math.sqrt(2));
      const weights = ui.softmax(scores);
      const output = [0, 1].map((axis) => weights.reduce(
        (sum, weight, i) => sum + weight * preset.values[i][axis], 0));
      const [x0, y0] = left.place([0, 0]);
      const [x1, y1] = left.place(query);
      Object.entries({ x1: x0, y1: y0, x2: x1, y2: y1 })
        .forEach(([key, value]) => arrow.setAttribute(key, value));
      const [cx, cy] = right.place(output);
      out.setAttribute("cx", cx);
      out.setAttribute("cy", cy);
      outLabel.setAttribute("x", cx - 10);
      outLabel.setAttribute("y", cy + 18);
      fill(scores, weights);
      line.textContent = "output = " + weights
        .map((weight, i) => `${weight.toFixed(3)} v${subscript(i + 1)}`)
        .join(" + ") +
        ` = (${output.map((c) => ui.fixed(c, 3)).join(", ")})`;
    };

    keys.forEach((key, i) => ui.handle(left, key, {
      label: `k${subscript(i + 1)}`, name: `key ${i + 1}`,
      colour: "orange", shape: "square", moved: update,
    }));
    ui.handle(left, query, {
      label: "q", name: "query", colour: "blue", moved: update,
    });
    update();
  };

  start(data.presets[0]);
}
