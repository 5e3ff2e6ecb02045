// A query and a key with four pairs, turned by their positions.
// data.query, data.key: eight channels each; data.m, data.n: positions.
(root, data, ui) => {
  root.replaceChildren();
  const width = data.query.length;
  const count = width / 2;
  const far = 40;
  const shown = 81; // shifts in the plot, 0 to 80
  const pairsOf = {
    neighbours: (i) => [2 * i, 2 * i + 1],
    halves: (i) => [i, i + count],
  };
  const ways = {
    neighbours: ["neighbours", "neighbours"],
    halves: ["halves", "halves"],
    mixed: ["neighbours", "halves"],
    query: ["neighbours", null],
  };
  // Channels turned pair by pair; no layout means not turned.
  const turned = (x, position, layout, base) => {
    const out = [...x];
    for (let i = 0; layout && i < count; i++) {
      const [a, c] = pairsOf[layout](i);
      const angle = position * base ** (-2 * i / width);
      out[a] = x[a] * Math.cos(angle) - x[c] * Math.sin(angle);
      out[c] = x[a] * Math.sin(angle) + x[c] * Math.cos(angle);
    }
    return out;
  };
  const words = (number, digits = 3) => ui.fixed(number, digits);
  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);

  const sliders = ui.add(root, "div", { class: "ta-row" });
  const limits = { min: 0, max: 2 * far, step: 1 };
  const forM = ui.range(sliders, "Query position m = ",
    { ...limits, value: data.m }, (value) => value, () => update(""));
  const forN = ui.range(sliders, "Key position n = ",
    { ...limits, value: data.n }, (value) => value, () => update(""));
  const buttons = ui.add(root, "div", { class: "ta-row" });
  const shift = (by) => {
    const before = score(0);
    const room = 2 * far - Math.max(forM.value, forN.value);
    const step = Math.min(by, room);
    forM.value += step;
    forN.value += step;
    const after = score(0);
    const same = Math.abs(after - before) < 1e-9;
    update(step === 0
      ? " The sliders are at their end: press back."
      : ` Shifted by ${step}: the score ` + (same ? "stayed the same."
        : `was ${words(before)}, it is ${words(after)} now.`));
  };
  ui.button(buttons, "Shift both by 1", () => shift(1));
  ui.button(buttons, "Shift both by 10", () => shift(10));
  ui.button(buttons, "Back", () => {
    forM.value = data.m;
    forN.value = data.n;
    update("");
  });
  const way = ui.choice(root, "Pairs:",
    [["neighbours", "interleaved"], ["halves", "half-split"],
      ["mixed", "wrong: query interleaved, key half-split"],
      ["query", "wrong: only the query turned"]],
    "neighbours", () => update(""));
  const base = ui.choice(root, "Base:",
    [["100", "100 (all hands visibly move)"], ["10000", "10,000"]],
    "100", () => update(""));

  const score = (by) => {
    const [forQuery, forKey] = ways[way()];
    return dot(turned(data.query, forM.value + by, forQuery, base()),
      turned(data.key, forN.value + by, forKey, base()));
  };

  // The clocks.
  const size = 150;
  const centre = size / 2;
  const radius = 62;
  const scale = radius / 1.6;
  const faces = ui.add(root, "div", { class: "ta-row" });
  const clocks = Array.from({ length: count }, (_, i) => {
    const face = ui.add(faces, "svg", {
      viewBox: `0 0 ${size} ${size + 28}`,
      style: "flex: 1 1 125px; max-width: 160px",
    });
    const group = ui.add(face, "g", { transform: "translate(0 18)" });
    const middle = { x: centre, "text-anchor": "middle" };
    const title = ui.add(group, "text",
      { ...middle, y: -4, "font-weight": "bold" });
    ui.add(group, "circle", { cx: centre, cy: centre, r: radius,
      fill: "none", class: "ta-axis" });
    for (let hour = 0; hour < 12; hour++) {
      ui.add(group, "line", { class: "ta-axis",
        x1: centre, x2: centre, y1: centre - radius,
        y2: centre - radius + 5,
        transform: `rotate(${30 * hour} ${centre} ${centre})` });
    }
    const wedge = ui.add(group, "path", { fill: "var(--ta-soft)" });
    const hand = (colour, dash) => ui.add(group, "line", {
      x1: centre, y1: centre, stroke: `var(--ta-${colour})`,
      "stroke-width": 3, "stroke-linecap": "round",
      "stroke-dasharray": dash });
    return {
      title, wedge, key: hand("orange", "7 5"), query: hand("blue", "none"),
      below: ui.add(group, "text", { ...middle, y: size + 6 }),
    };
  });
  const legend = ui.add(root, "div", { class: "ta-row" });
  for (const [colour, name, dash] of [["blue", "query", "none"],
    ["orange", "key", "7 5"]]) {
    const item = ui.add(legend, "span", { style: "display: inline-flex; " +
      "align-items: center; gap: 0.4rem" });
    const swatch = ui.add(item, "svg",
      { viewBox: "0 0 40 10", style: "width: 40px" });
    ui.add(swatch, "line", { x1: 2, x2: 38, y1: 5, y2: 5,
      stroke: `var(--ta-${colour})`, "stroke-width": 3,
      "stroke-dasharray": dash });
    item.append(name);
  }

  // The score while both positions move on.
  const plot = ui.add(root, "svg", { viewBox: "0 0 460 156", role: "img",
    class: "ta-wide",
    style: "max-width: 500px", "aria-label": "Score against a shift of both positions" });
  const [left, right, top, bottom, reach] = [30, 450, 18, 118, 8];
  ui.add(plot, "text", { x: left + 4, y: 12 }, "score");
  const x = (by) => left + by / (shown - 1) * (right - left);
  const y = (value) => (top + bottom) / 2
    - value / reach * (bottom - top) / 2;
  for (const value of [-8, 0, 8]) {
    ui.add(plot, "line", { class: value ? "ta-grid" : "ta-axis",
      x1: left, x2: right, y1: y(value), y2: y(value) });
    ui.add(plot, "text", { x: left - 6, y: y(value) + 4,
      "text-anchor": "end" }, words(value, 0));
  }
  for (let by = 0; by < shown; by += 20) {
    ui.add(plot, "text", { x: x(by), y: bottom + 14,
      "text-anchor": "middle" }, by);
  }
  ui.add(plot, "text", { x: (left + right) / 2, y: 148,
    "text-anchor": "middle" }, "steps that both positions move on");
  const curve = ui.add(plot, "polyline", { fill: "none",
    stroke: "var(--ta-green)", "stroke-width": 2.5 });
  const line = ui.add(root, "p", { "aria-live": "polite" });

  const update = (news) => {
    const [forQuery, forKey] = ways[way()];
    const q = turned(data.query, forM.value, forQuery, base());
    const k = turned(data.key, forN.value, forKey, base());
    const subscript = (n) => String.fromCharCode(0x2080 + n);
    clocks.forEach((clock, i) => {
      const direction = (vector, layout) => {
        const [a, c] = pairsOf[layout ?? "neighbours"](i);
        return [vector[a], vector[c]];
      };
      const ends = { query: direction(q, forQuery),
        key: direction(k, forKey) };
      for (const [name, [a, c]] of Object.entries(ends)) {
        clock[name].setAttribute("x2", centre + scale * a);
        clock[name].setAttribute("y2", centre - scale * c);
      }
      const angleOf = ([a, c]) => Math.atan2(c, a);
      const [from, to] = [angleOf(ends.key), angleOf(ends.query)];
      let between = to - from;
      between -= 2 * Math.PI * Math.round(between / (2 * Math.PI));
      const corner = (angle) => `${centre + 26 * Math.cos(angle)} ` +
        `${centre - 26 * Math.sin(angle)}`;
      clock.wedge.setAttribute("d", `M ${centre} ${centre} ` +
        `L ${corner(from)} A 26 26 0 0 ${between > 0 ? 0 : 1} ` +
        `${corner(from + between)} Z`);
      const degrees = Math.round(Math.abs(between) * 180 / Math.PI);
      clock.below.textContent = `${degrees}\u00b0 apart`;
      const channels = (layout) =>
        pairsOf[layout ?? "neighbours"](i).join(", ");
      clock.title.textContent = forKey && forKey !== forQuery
        ? `pair ${i}: ${channels(forQuery)} | ${channels(forKey)}`
        : `pair ${i}: ${channels(forQuery)}`;
    });
    curve.setAttribute("points", Array.from({ length: shown },
      (_, by) => `${x(by)},${y(score(by))}`).join(" "));
    const distance = words(forM.value - forN.value, 0);
    line.textContent =
      `m \u2212 n = ${distance}, score ${words(score(0))}.` + news;
  };
  update("");
}
