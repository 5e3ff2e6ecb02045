// Loss against model size at a fixed compute, and what the best size costs.
// data.sets: {name: {words, p: {A, B, E, alpha, beta}, from, to, start}},
// the last three as log10 of FLOPs; data.runs: [{C, N, loss}] of the set
// data.measured, whose tokens are characters.
(root, data, ui) => {
  root.replaceChildren();
  const names = Object.keys(data.sets);
  const loss = ({ A, B, E, alpha, beta }, N, D) =>
    E + A / N ** alpha + B / D ** beta;
  const best = (p, C) => {
    const G = (p.alpha * p.A / (p.beta * p.B)) ** (1 / (p.alpha + p.beta));
    const N = G * (C / 6) ** (p.beta / (p.alpha + p.beta));
    return { N, D: C / 6 / N, loss: loss(p, N, C / 6 / N) };
  };
  // The compute at which the best model reaches a loss; the loss falls in C.
  const needed = (p, target) => {
    let [low, high] = [0, 40];
    for (let step = 0; step < 60; step++) {
      const middle = (low + high) / 2;
      if (best(p, 10 ** middle).loss > target) low = middle;
      else high = middle;
    }
    return 10 ** high;
  };
  const words = (value) => {
    for (const [size, name] of [[1e12, " trillion"], [1e9, " billion"],
      [1e6, " million"], [1e3, " thousand"]]) {
      if (value >= size) return (value / size).toPrecision(3) + name;
    }
    return value.toPrecision(3);
  };
  const digits = "\u2070\u00b9\u00b2\u00b3\u2074" +
    "\u2075\u2076\u2077\u2078\u2079";
  const short = (exponent) => "10" + [...String(exponent)]
    .map((digit) => digits[digit]).join("");
  const power = (value) => {
    let exponent = Math.floor(Math.log10(value) + 1e-9);
    let front = (value / 10 ** exponent).toFixed(1);
    if (front === "10.0") [front, exponent] = ["1.0", exponent + 1];
    return `${front}\u00b7${short(exponent)}`;
  };

  const which = ui.choice(root, "Constants:",
    names.map((name) => [name, data.sets[name].words]), names[0], () => {
      budget.value = fraction(data.sets[which()].start);
      update();
    });
  // One slider for all sets: where in the set's range the budget lies.
  const STEPS = 1000;
  const fraction = (exponent) => {
    const { from, to } = data.sets[which()];
    return Math.round(STEPS * (exponent - from) / (to - from));
  };
  const compute = () => {
    const { from, to } = data.sets[which()];
    return 10 ** (from + budget.value / STEPS * (to - from));
  };
  const sliders = ui.add(root, "div", { class: "ta-row" });
  const budget = ui.range(sliders, "Compute C = ",
    { min: 0, max: STEPS, step: 1, value: fraction(data.sets[names[0]].start) },
    (value) => {
      const { from, to } = data.sets[which()];
      return power(10 ** (from + value / STEPS * (to - from))) + " FLOPs";
    }, () => update());
  const times = (value) => {
    const factor = 2 ** Math.abs(value / 4);
    if (value === 0) return "the best";
    return `${factor.toPrecision(2)} times ` +
      (value > 0 ? "too large" : "too small");
  };
  const off = ui.range(sliders, "Your model: ",
    { min: -16, max: 16, step: 1, value: 8 }, times, () => update());

  const panels = ui.add(root, "div", { class: "ta-row" });
  const [wide, high] = [320, 262];
  const frame = { left: 44, right: 304, top: 24, bottom: 220 };
  const graph = (title, label) => {
    const svg = ui.add(ui.panel(panels, title), "svg",
      { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": label });
    return { svg, layer: ui.add(svg, "g") };
  };
  const left = graph("Loss at this compute",
    "Loss against the number of parameters, one curve for each compute");
  const right = graph("Tokens per parameter at the best size",
    "Tokens per parameter at the best size against compute");
  const line = ui.add(root, "p", { "aria-live": "polite",
    style: "min-height: 4.2em" });

  // Axes of one graph; returns where a point stands.
  const axes = (layer, [x0, x1], [y0, y1], { xs, ys, xName, yName }) => {
    const { left: l, right: r, top: t, bottom: b } = frame;
    const x = (value) => l + (value - x0) / (x1 - x0) * (r - l);
    const y = (value) => b - (value - y0) / (y1 - y0) * (b - t);
    for (const [value, text] of xs) {
      ui.add(layer, "line", { class: "ta-grid", x1: x(value), x2: x(value),
        y1: t, y2: b });
      ui.add(layer, "text", { x: x(value), y: b + 15,
        "text-anchor": "middle" }, text);
    }
    for (const [value, text] of ys) {
      ui.add(layer, "line", { class: "ta-grid", x1: l, x2: r,
        y1: y(value), y2: y(value) });
      ui.add(layer, "text", { x: l - 5, y: y(value) + 4,
        "text-anchor": "end" }, text);
    }
    ui.add(layer, "line", { class: "ta-axis", x1: l, x2: r, y1: b, y2: b });
    ui.add(layer, "text", { x: (l + r) / 2, y: b + 34,
      "text-anchor": "middle" }, xName);
    // Above the frame, where no curve crosses it.
    ui.add(layer, "text", { x: 4, y: t - 12 }, yName);
    return { x, y };
  };
  const whole = (from, to, step = 1) => {
    const found = [];
    for (let n = Math.ceil(from / step) * step; n <= to + 1e-9; n += step) {
      found.push(n);
    }
    return found;
  };
  const path = (layer, points, attributes) => ui.add(layer, "polyline", {
    points: points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`)
      .join(" "),
    fill: "none", ...attributes });

  const drawLoss = (C, factor) => {
    left.layer.replaceChildren();
    const { p, from, to } = data.sets[which()];
    const ends = [best(p, 10 ** from), best(p, 10 ** to)];
    const span = [Math.log10(ends[0].N) - 1.25,
      Math.log10(ends[1].N) + 1.25];
    const range = ends[0].loss - ends[1].loss;
    const [low, top] = [ends[1].loss - 0.3 * range,
      ends[0].loss + 0.7 * range];
    const step = top - low > 1 ? 0.5 : top - low > 0.4 ? 0.2 : 0.1;
    const { x, y } = axes(left.layer, span, [low, top], {
      xs: whole(...span).map((n) => [n, short(n)]),
      ys: whole(low, top, step).map((n) => [n, n.toFixed(1)]),
      xName: "parameters N", yName: "loss (nats)" });
    const curve = (budget) => {
      const points = [];
      const step = (span[1] - span[0]) / 80;
      for (let n = span[0]; n <= span[1] + 1e-9; n += step) {
        const value = loss(p, 10 ** n, budget / 6 / 10 ** n);
        if (value <= top) points.push([x(n), y(value)]);
      }
      return points;
    };
    for (let n = 0; n <= 4; n++) {
      path(left.layer, curve(10 ** (from + (to - from) * n / 4)),
        { stroke: "currentColor", "stroke-opacity": 0.3 });
    }
    path(left.layer, Array.from({ length: 41 }, (_, n) => {
      const at = best(p, 10 ** (from + (to - from) * n / 40));
      return [x(Math.log10(at.N)), y(at.loss)];
    }), { stroke: "var(--ta-green)", "stroke-width": 1.5,
      "stroke-dasharray": "2 4" });
    path(left.layer, curve(C),
      { stroke: "var(--ta-blue)", "stroke-width": 2.5 });
    if (which() === data.measured) {
      for (const run of data.runs) {
        const near = Math.abs(Math.log10(run.C / C)) < 0.15;
        if (run.loss > top || Math.log10(run.N) > span[1]) continue;
        ui.add(left.layer, "circle", { cx: x(Math.log10(run.N)),
          cy: y(run.loss), r: near ? 4 : 2.5,
          fill: near ? "var(--ta-blue)" : "currentColor",
          "fill-opacity": near ? 1 : 0.45 });
      }
    }
    const optimum = best(p, C);
    ui.add(left.layer, "rect", { x: x(Math.log10(optimum.N)) - 5,
      y: y(optimum.loss) - 5, width: 10, height: 10,
      fill: "var(--ta-green)" });
    const N = optimum.N * factor;
    const value = loss(p, N, C / 6 / N);
    const at = Math.max(frame.left, Math.min(frame.right, x(Math.log10(N))));
    ui.add(left.layer, "circle", { cx: at, cy: y(Math.min(value, top)), r: 7,
      fill: "none", stroke: "var(--ta-orange)", "stroke-width": 3 });
  };

  const drawRatio = (C) => {
    right.layer.replaceChildren();
    const chosen = data.sets[which()];
    const shown = names.filter((name) => (name === data.measured)
      === (which() === data.measured));
    const span = [chosen.from, chosen.to];
    const ratio = (name, n) => {
      const at = best(data.sets[name].p, 10 ** n);
      return Math.log10(at.D / at.N);
    };
    const reach = [0, 3];
    const { x, y } = axes(right.layer, span, reach, {
      xs: whole(...span, span[1] - span[0] > 4 ? 2 : 1)
        .map((n) => [n, short(n)]),
      ys: [[0, "1"], [1, "10"], [2, "100"], [3, "1,000"]],
      xName: "compute C (FLOPs)", yName: "D / N" });
    path(right.layer, span.map((n) => [x(n), y(Math.log10(20))]),
      { stroke: "currentColor", "stroke-dasharray": "2 4" });
    ui.add(right.layer, "text", { x: frame.left + 4,
      y: y(Math.log10(20)) + 14, class: "ta-halo" }, "20");
    for (const name of shown) {
      const own = name === which();
      path(right.layer, Array.from({ length: 21 }, (_, k) => {
        const n = span[0] + (span[1] - span[0]) * k / 20;
        return [x(n), y(ratio(name, n))];
      }), { stroke: own ? "var(--ta-green)" : "currentColor",
        "stroke-width": own ? 2.5 : 1.2,
        "stroke-opacity": own ? 1 : 0.55 });
    }
    const n = Math.log10(C);
    ui.add(right.layer, "rect", { x: x(n) - 5,
      y: y(ratio(which(), n)) - 5, width: 10, height: 10,
      fill: "var(--ta-green)" });
  };

  const update = () => {
    const C = compute();
    const { p } = data.sets[which()];
    const factor = 2 ** (off.value / 4);
    drawLoss(C, factor);
    drawRatio(C);
    const at = best(p, C);
    const unit = which() === data.measured ? "characters" : "tokens";
    const N = at.N * factor;
    const own = loss(p, N, C / 6 / N);
    const share = needed(p, own) / C;
    line.textContent = `Best (green square): ${words(at.N)} parameters on ` +
      `${words(at.D)} ${unit}, ${(at.D / at.N).toPrecision(3)} per ` +
      `parameter, loss ${at.loss.toFixed(3)}. ` +
      (off.value === 0 ? "That is your model." :
        `Yours (orange ring): ${words(N)} parameters on ` +
        `${words(C / 6 / N)} ${unit}, loss ${own.toFixed(3)}; the best ` +
        `model reaches that with ${Math.round(100 * share)}% of the compute.`);
  };
  budget.value = fraction(data.sets[names[0]].start);
  update();
}
