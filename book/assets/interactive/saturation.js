// One query and eight keys as wide as the slider says: weights, Jacobian.
// data.dims: [d, ...]; data.scores: for each d the eight unscaled scores.
(root, data, ui) => {
  root.replaceChildren();
  const count = data.scores[0].length;
  const controls = ui.add(root, "div", { class: "ta-row" });
  const range = ui.range(controls, "Width d\u2096 = ",
    { min: 0, max: data.dims.length - 1, step: 1,
      value: data.dims.indexOf(64) },
    (index) => data.dims[index], () => update());
  const divisor = ui.choice(root, "Divide the scores by",
    [["none", "1"], ["sqrt", "\u221ad\u2096"], ["d", "d\u2096"]],
    "none", () => update());

  const panels = ui.add(root, "div", { class: "ta-row" });
  const left = ui.panel(panels, "Weights y of the eight keys");
  const fill = ui.bars(left,
    Array.from({ length: count }, (_, i) => `key ${i + 1}`),
    ["", "score", "weight"]);
  const right = ui.panel(panels, "Jacobian \u2202y\u1d62/\u2202s\u2c7c");
  const cell = 32;
  const edge = 26;
  const size = edge + count * cell;
  const svg = ui.add(right, "svg",
    { viewBox: `0 0 ${size + 2} ${size + 16}` });
  const middle = { "text-anchor": "middle" };
  const grid = [];
  for (let i = 0; i < count; i++) {
    const centre = edge + (i + 0.5) * cell;
    ui.add(svg, "text", { ...middle, x: edge - 8, y: centre + 4 - edge + 2 },
      i + 1);
    ui.add(svg, "text", { ...middle, x: centre, y: size - edge + 16 }, i + 1);
    grid.push([]);
    for (let j = 0; j < count; j++) {
      const [x, y] = [edge + j * cell, i * cell + 2];
      const box = ui.add(svg, "rect",
        { x, y, width: cell - 1, height: cell - 1, class: "ta-grid" });
      const text = ui.add(svg, "text",
        { ...middle, x: x + cell / 2, y: y + cell / 2 + 4,
          style: "font-size: 10.5px" });
      grid[i].push({ box, text });
    }
  }
  ui.add(svg, "text", { ...middle, x: edge + count * cell / 2, y: size + 8 },
    "score j");
  ui.add(svg, "text", { ...middle,
    transform: `translate(9 ${count * cell / 2}) rotate(-90)` }, "weight i");
  const line = ui.add(root, "p", { "aria-live": "polite" });

  const update = () => {
    const d = data.dims[range.value];
    const by = { none: 1, sqrt: Math.sqrt(d), d }[divisor()];
    const scores = data.scores[range.value].map((score) => score / by);
    const weights = ui.softmax(scores);
    fill(scores, weights);
    let largest = 0;
    grid.forEach((row, i) => row.forEach(({ box, text }, j) => {
      const slope = weights[i] * ((i === j ? 1 : 0) - weights[j]);
      largest = Math.max(largest, Math.abs(slope));
      const colour = slope < 0 ? "orange" : "blue";
      box.setAttribute("fill", `var(--ta-${colour})`);
      // A quarter is the largest slope that a softmax can have.
      box.setAttribute("style", ui.shade(4 * Math.abs(slope)));
      const words = ui.fixed(slope, 2).replace("0.", ".");
      text.textContent = Math.abs(slope) < 0.005 ? "0" : words;
    }));
    const mean = scores.reduce((a, b) => a + b) / count;
    const spread = Math.sqrt(scores.reduce(
      (sum, score) => sum + (score - mean) ** 2, 0) / count);
    line.textContent =
      `Standard deviation of these eight scores: ${spread.toFixed(2)}. ` +
      `Largest weight: ${Math.max(...weights).toFixed(3)}. ` +
      `Largest slope: ${largest.toFixed(3)} (0.25 is possible).`;
  };
  update();
}
