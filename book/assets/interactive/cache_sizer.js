// Weights and KV cache against the memory of a card.
// data.models: {name, weights and token in GiB at 16 bits, longest context};
// data.cards: GiB; data.model, data.card: what is chosen first.
(root, data, ui) => {
  root.replaceChildren();
  const words = (gib) => gib >= 100 ? `${Math.round(gib)} GiB`
    : gib >= 1 ? `${gib.toFixed(1)} GiB`
      : gib >= 0.1 ? `${Math.round(1024 * gib)} MiB`
        : `${(1024 * gib).toFixed(1)} MiB`;
  const model = ui.choice(root, "Model:",
    data.models.map((each, i) => [String(i), each.name]),
    String(data.model), () => update());
  const card = ui.choice(root, "Memory:",
    data.cards.map((gib) => [String(gib), `${gib} GiB`]),
    String(data.card), () => update());
  const bits = ui.choice(root, "Cache:",
    [["16", "16 bits"], ["8", "8 bits"]], "16", () => update());
  const sliders = ui.add(root, "div", { class: "ta-row" });
  const context = ui.range(sliders, "Tokens in each: ",
    { min: 8, max: 17, step: 1, value: 13 },
    (power) => (2 ** power).toLocaleString("en-US"), () => update());
  const people = ui.range(sliders, "Sequences: ",
    { min: 0, max: 8, step: 1, value: 2 },
    (power) => 2 ** power, () => update());

  const [left, right, top, tall] = [4, 352, 26, 34];
  const plot = ui.add(root, "svg", { viewBox: "0 0 360 94", role: "img",
    style: "max-width: 420px",
    "aria-label": "Memory of weights and cache against the card's" });
  const bar = (fill) => ui.add(plot, "rect",
    { y: top, height: tall, fill });
  const used = { weights: bar("var(--ta-blue)"),
    cache: bar("var(--ta-orange)") };
  const edge = ui.add(plot, "line", { y1: top - 6, y2: top + tall + 6,
    stroke: "currentColor", "stroke-width": 3,
    "stroke-dasharray": "6 4" });
  const edgeName = ui.add(plot, "text", { y: top - 11 });
  const axis = ui.add(plot, "g");
  const legend = ui.add(root, "div", { class: "ta-row" });
  for (const [name, colour] of [["weights", "blue"], ["cache", "orange"]]) {
    const item = ui.add(legend, "span", { style: "display: inline-flex; " +
      "align-items: center; gap: 0.4rem" });
    ui.add(item, "span", { style: "width: 14px; height: 14px; " +
      `background: var(--ta-${colour})` });
    item.append(name);
  }
  const line = ui.add(root, "p", { "aria-live": "polite" });

  const update = () => {
    const chosen = data.models[Number(model())];
    const room = Number(card());
    const tokens = 2 ** context.value;
    const count = 2 ** people.value;
    const each = tokens * chosen.token * Number(bits()) / 16;
    const cache = count * each;
    const total = chosen.weights + cache;
    const scale = (right - left) / (1.08 * Math.max(room, total));
    used.weights.setAttribute("x", left);
    used.weights.setAttribute("width", scale * chosen.weights);
    used.cache.setAttribute("x", left + scale * chosen.weights);
    used.cache.setAttribute("width", scale * cache);
    const end = left + scale * room;
    edge.setAttribute("x1", end);
    edge.setAttribute("x2", end);
    edgeName.textContent = `card: ${room} GiB`;
    edgeName.setAttribute("x", end);
    edgeName.setAttribute("text-anchor", end > 300 ? "end"
      : end < 60 ? "start" : "middle");
    // Three or four round marks on the axis.
    axis.replaceChildren();
    const span = (right - left) / scale;
    const power = 10 ** Math.floor(Math.log10(span / 2.5));
    const step = power * [5, 2, 1].find((n) => n * power <= span / 2.5);
    for (let at = 0; at <= span; at += step) {
      const x = left + scale * at;
      ui.add(axis, "line", { class: "ta-axis", x1: x, x2: x,
        y1: top + tall + 8, y2: top + tall + 14 });
      ui.add(axis, "text", { x, y: top + tall + 28,
        "text-anchor": at === 0 ? "start" : x > 325 ? "end" : "middle" },
      `${at.toLocaleString("en-US")} GiB`);
    }
    const fit = Math.floor((room - chosen.weights) / each);
    const verdict = chosen.weights > room
      ? "The weights alone do not fit."
      : total > room ? "This does not fit." : "This fits.";
    const served = chosen.weights > room ? ""
      : fit > 0 ? ` Room for ${fit.toLocaleString("en-US")} such ` +
        `sequence${fit > 1 ? "s" : ""} in all.`
        : " Not one such sequence fits.";
    const far = tokens > chosen.longest ? " (The model was made for " +
      `${chosen.longest.toLocaleString("en-US")} tokens.)` : "";
    line.textContent = `Weights ${words(chosen.weights)}; cache ` +
      `${count} × ${words(each)} = ${words(cache)}; together ` +
      `${words(total)}. ${verdict}${served}${far}`;
  };
  update();
}
