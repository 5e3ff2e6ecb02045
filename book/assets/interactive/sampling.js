// A model's predictions, and what four filters leave of them.
// data.letters: the vocabulary; data.contexts: [{text, logits}, ...].
(root, data, ui) => {
  root.replaceChildren();
  const V = data.letters.length;
  const rows = Math.min(14, V);
  const percent = (p) => p >= 0.0995 ? `${(100 * p).toFixed(0)}%`
    : p >= 0.00095 ? `${(100 * p).toFixed(1)}%`
      : p > 0 ? "< 0.1%" : "0";

  const context = ui.choice(root, "After the text",
    data.contexts.map(({ text }, i) => [String(i), `\u201c${text}\u201d`]),
    "0", () => update());
  const sliders = ui.add(root, "div", { class: "ta-row" });
  const slider = (text, limits, words) =>
    ui.range(sliders, text, limits, words, () => update());
  const temperature = slider("Temperature ",
    { min: 0, max: 2, step: 0.05, value: 1 },
    (value) => value === 0 ? "0 (greedy)" : value.toFixed(2));
  const topK = slider("top-k ", { min: 1, max: rows + 1, step: 1,
    value: rows + 1 }, (value) => value > rows ? "off" : value);
  const topP = slider("top-p ", { min: 0.05, max: 1, step: 0.05,
    value: 0.9 }, (value) => value === 1 ? "off" : value.toFixed(2));
  const minP = slider("min-p ", { min: 0, max: 0.5, step: 0.02, value: 0 },
    (value) => value === 0 ? "off" : value.toFixed(2));

  // Each step: a name, and how many tokens it leaves.
  const steps = ui.add(root, "p");
  const chart = ui.add(root, "div", { class: "ta-bars", style:
    "grid-template-columns: max-content max-content 1fr max-content; " +
    "text-align: left" });
  for (const head of ["next", "model", "", "drawn"]) {
    ui.add(chart, "span", head === "model" || head === "drawn"
      ? { class: "ta-number" } : {}, head);
  }
  const bars = Array.from({ length: rows + 1 }, () => {
    const name = ui.add(chart, "span", { style: "font-family: monospace" });
    const before = ui.add(chart, "span", { class: "ta-number" });
    const track = ui.add(chart, "span", { style:
      "display: block; position: relative; height: 1.1em" });
    const bar = (style) => ui.add(track, "span", { style:
      `display: block; position: absolute; left: 0; ${style}` });
    return {
      name, before,
      pale: bar("top: 0; height: 100%; background: var(--ta-soft); " +
        "box-shadow: inset 0 0 0 1px var(--ta-blue)"),
      full: bar("top: 25%; height: 50%; background: var(--ta-blue)"),
      after: ui.add(chart, "span", { class: "ta-number" }),
    };
  });
  const line = ui.add(root, "p", { "aria-live": "polite",
    style: "min-height: 2.8em" });
  const buttons = ui.add(root, "div", { class: "ta-row" });
  const drawn = ui.add(root, "p", { "aria-live": "polite",
    style: "min-height: 1.4em; overflow-wrap: anywhere" });

  // Probabilities in the order of the model's own, largest first.
  const filter = () => {
    const { logits } = data.contexts[Number(context())];
    const ranked = [...logits.keys()].sort((a, b) => logits[b] - logits[a]);
    const model = ui.softmax(ranked.map((i) => logits[i]));
    const tau = temperature.value;
    const top = logits[ranked[0]];
    let p = tau === 0
      ? ranked.map((i) => Number(logits[i] === top))
      : ui.softmax(ranked.map((i) => logits[i] / tau));
    const counts = [["model", V]];
    const leave = (name, keep) => {
      p = p.map((value, rank) => keep(value, rank) ? value : 0);
      const sum = p.reduce((a, b) => a + b);
      p = p.map((value) => value / sum);
      counts.push([name, p.filter((value) => value > 0).length]);
    };
    leave(`temperature ${tau.toFixed(2)}`, () => true);
    if (topK.value <= rows) {
      const kth = p[topK.value - 1];
      leave(`top-k ${topK.value}`, (value) => value >= kth);
    }
    if (topP.value < 1) {
      let before = 0;
      leave(`top-p ${topP.value.toFixed(2)}`, (value, rank) => {
        const keep = rank === 0 || before < topP.value;
        before += value;
        return keep;
      });
    }
    if (minP.value > 0) {
      const most = Math.max(...p);
      leave(`min-p ${minP.value.toFixed(2)}`, (value) => value >= minP.value * most);
    }
    return { ranked, model, p, counts };
  };

  const draw = (n) => {
    const { ranked, p } = filter();
    const tokens = Array.from({ length: n }, () => {
      let left = Math.random();
      const rank = p.findIndex((value) => (left -= value) < 0);
      return data.letters[ranked[rank < 0 ? 0 : rank]];
    });
    drawn.textContent = `Drawn: ${tokens.join("  ")}`;
  };
  ui.button(buttons, "Draw 20", () => draw(20));
  ui.button(buttons, "All filters off", () => {
    temperature.value = 1;
    topK.value = rows + 1;
    topP.value = 1;
    minP.value = 0;
    update();
  });

  const update = () => {
    const { ranked, model, p, counts } = filter();
    steps.textContent = counts.map(([name, n], i) =>
      i === 0 ? `${n} characters` : `${name}: ${n}`).join(" \u2192 ");
    const rest = (list) => list.slice(rows).reduce((a, b) => a + b, 0);
    const all = [...model.slice(0, rows), rest(model)];
    const now = [...p.slice(0, rows), rest(p)];
    const most = Math.max(...all, ...now);
    bars.forEach((bar, rank) => {
      const other = rank === rows;
      bar.name.textContent = other ? `${V - rows} others`
        : data.letters[ranked[rank]];
      bar.before.textContent = percent(all[rank]);
      bar.after.textContent = percent(now[rank]);
      bar.pale.style.width = `${100 * all[rank] / most}%`;
      bar.full.style.width = `${100 * now[rank] / most}%`;
    });
    const cut = model.reduce((sum, value, rank) =>
      p[rank] > 0 ? sum : sum + value, 0);
    const spread = (list) => Math.exp(list.reduce((sum, value) =>
      value > 0 ? sum - value * Math.log(value) : sum, 0)).toFixed(1);
    line.textContent = `The filters cut ${percent(cut)} of what the model ` +
      `had expected. Before, the choice was as open as one among ` +
      `${spread(model)} equally likely characters; now, among ${spread(p)}.`;
    drawn.textContent = "";
  };
  update();
}
