// Tiles of scores, and the running (m, l, a) of each row.
// data: scores (T, T), values (T), tall and wide (a tile's size).
(root, data, ui) => {
  root.replaceChildren();
  const { scores, values, tall, wide } = data;
  const T = scores.length;
  const words = (x, digits = 2) => Number.isFinite(x)
    ? ui.fixed(x, digits)
    : x < 0 ? "\u2212\u221e" : "\u2013";

  const causal = ui.choice(root, "Mask:",
    [["causal", "causal"], ["none", "none"]], "causal", () => update());
  const rule = ui.choice(root, "Rule:",
    [["right", "right"], ["sums", "wrong: no rescaling"],
      ["skip", "wrong: skip by the first query"]],
    "right", () => update());
  const row = ui.add(root, "div", { class: "ta-row" });
  const tiles = [];
  for (let top = 0; top < T; top += tall) {
    for (let start = 0; start < T; start += wide) tiles.push([top, start]);
  }
  const slider = ui.range(row, "Tiles passed: ",
    { min: 0, max: tiles.length, step: 1, value: 2 },
    (n) => `${n} of ${tiles.length}`, () => update());
  ui.button(row, "Next tile", () => {
    slider.value = slider.value === tiles.length ? 0 : slider.value + 1;
    update();
  });

  const panels = ui.add(root, "div", { class: "ta-row",
    style: "align-items: flex-start" });
  const grid = ui.panel(panels, "Scores, queries down, keys across");
  const size = 34;
  const x0 = 22;
  const svg = ui.add(grid, "svg", { role: "img",
    viewBox: `0 0 ${x0 + T * size + 4} ${x0 + T * size + 4}`,
    "aria-label": "Scores in tiles" });
  const cells = scores.map((line, i) => {
    ui.add(svg, "text", { x: 8, y: x0 + i * size + 21,
      "text-anchor": "middle" }, i);
    ui.add(svg, "text", { x: x0 + i * size + size / 2, y: 14,
      "text-anchor": "middle" }, i);
    return line.map((score, j) => {
      const [x, y] = [x0 + j * size, x0 + i * size];
      const box = ui.add(svg, "rect", { x, y, width: size, height: size,
        class: "ta-grid" });
      const text = ui.add(svg, "text", { x: x + size / 2, y: y + 21,
        "text-anchor": "middle" });
      return { box, text };
    });
  });
  for (const [top, start] of tiles) {
    ui.add(svg, "rect", { x: x0 + start * size, y: x0 + top * size,
      width: wide * size, height: tall * size, fill: "none",
      class: "ta-axis" });
  }
  const frame = ui.add(svg, "rect", { width: wide * size,
    height: tall * size, fill: "none", stroke: "var(--ta-orange)",
    "stroke-width": 4 });

  const state = ui.panel(panels, "What the rows carry");
  const table = ui.add(state, "div", { style: "display: grid; gap: " +
    "0.2rem 0.4rem; grid-template-columns: repeat(7, auto); " +
    "font-variant-numeric: tabular-nums; text-align: right" });
  const line = ui.add(root, "p", { "aria-live": "polite",
    style: "min-height: 2.8em" });

  const seen = (i, j) => causal() === "none" || j <= i;
  const skipped = ([top, start]) => causal() === "causal" &&
    start > (rule() === "skip" ? top : top + tall - 1);

  // The state of all rows after the first `count` tiles.
  const after = (count) => {
    const rows = scores.map(() => ({ m: -Infinity, l: 0, a: 0, by: 1 }));
    tiles.slice(0, count).forEach((tile) => {
      const [top, start] = tile;
      for (let i = top; i < top + tall; i++) {
        const now = rows[i];
        now.by = 1;
        if (skipped(tile)) continue;
        const keys = Array.from({ length: wide }, (_, n) => start + n)
          .filter((j) => seen(i, j));
        if (!keys.length) continue;
        const m = Math.max(now.m, ...keys.map((j) => scores[i][j]));
        now.by = Math.exp(now.m - m);
        const kept = rule() === "sums" ? 1 : now.by;
        now.l *= kept;
        now.a *= kept;
        for (const j of keys) {
          const power = Math.exp(scores[i][j] - m);
          now.l += power;
          now.a += power * values[j];
        }
        now.m = m;
      }
    });
    return rows;
  };
  const exact = (i) => {
    const keys = values.map((_, j) => j).filter((j) => seen(i, j));
    const weights = ui.softmax(keys.map((j) => scores[i][j]));
    return keys.reduce((sum, j, n) => sum + weights[n] * values[j], 0);
  };

  const update = () => {
    const count = slider.value;
    const rows = after(count);
    const current = tiles[Math.max(0, count - 1)];
    const [top, start] = current;
    const ended = count > 0 && start + wide === T;
    cells.forEach((each, i) => each.forEach(({ box, text }, j) => {
      const number = tiles.findIndex(([t, s]) =>
        i >= t && i < t + tall && j >= s && j < s + wide);
      const out = skipped(tiles[number]);
      const hidden = !seen(i, j);
      const lost = out && !hidden;
      const here = number === count - 1;
      const done = number < count - 1;
      box.setAttribute("fill", here && !out && !hidden
        ? "var(--ta-soft)" : "none");
      text.textContent = lost ? "lost" : out ? "skip" : hidden ? "\u2212\u221e"
        : done ? "\u00b7" : words(scores[i][j], 1);
      text.setAttribute("fill-opacity", lost || here ? 1 : 0.75);
      text.setAttribute("font-weight", lost ? "bold" : "normal");
      text.style.fill = lost ? "var(--ta-orange)" : "";
    }));
    frame.setAttribute("x", x0 + start * size);
    frame.setAttribute("y", x0 + top * size);
    frame.setAttribute("visibility", count ? "visible" : "hidden");
    table.replaceChildren();
    for (const head of ["row", "m", "factor", "l", "a", "a / l", "exact"]) {
      ui.add(table, "b", {}, head);
    }
    let worst = 0;
    const risen = [];
    for (let i = top; i < top + tall; i++) {
      const { m, l, a, by } = rows[i];
      const out = l ? a / l : NaN;
      const goal = exact(i);
      const error = l ? Math.abs(out - goal) : Infinity;
      worst = Math.max(worst, error);
      for (const text of [i, words(m, 1), words(by), words(l), words(a),
        words(out), words(goal)]) ui.add(table, "span", {}, text);
      if (by < 1 && by > 0) {
        risen.push(`in row ${i} the maximum rises, and what was summed is ` +
          (rule() === "sums" ? `left as it is instead of being times ` +
            words(by) : `multiplied by ${words(by)}`));
      }
    }
    const place = `Queries ${top} to ${top + tall - 1}, keys ${start} to ` +
      `${start + wide - 1}: `;
    const end = !ended ? "" : worst < 1e-9
      ? " This row of tiles is done: a / l is the exact output."
      : " This row of tiles is done, and a / l is wrong by up to " +
        `${Number.isFinite(worst) ? words(worst) : "everything"}.`;
    line.textContent = count === 0
      ? "No tile has passed: m is \u2212\u221e, l and a are 0."
      : place + (skipped(current) ? "skipped."
        : risen.length ? `${risen.join("; ")}.`
          : "no maximum rises, the new scores are added.") + end;
  };
  update();
}
