// A power law through the best sizes of some groups, with the band that its
// bootstrap gives. data.groups: [{C, N, draws}], draws: N of each resampling.
(root, data, ui) => {
  root.replaceChildren();
  const log = Math.log10;
  const digits = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";
  const power = (exponent) => "10" + [...String(exponent)]
    .map((digit) => digits[digit]).join("");
  const times = (C) => {
    const exponent = Math.floor(log(C) + 1e-9);
    const front = C / 10 ** exponent;
    return `${Number(front.toFixed(1))}\u00b7${power(exponent)}`;
  };
  const set = ui.group(root, "Groups in the fit (FLOPs):");
  const boxes = data.groups.map((group) => {
    const label = ui.add(set, "label");
    const box = ui.add(label, "input", { type: "checkbox" });
    box.checked = true;
    label.append(times(group.C));
    box.addEventListener("change", () => update());
    return box;
  });
  const svg = ui.add(root, "svg", { viewBox: "0 0 460 270", role: "img",
    class: "ta-wide",
    style: "max-width: 560px",
    "aria-label": "Best size against compute with the fitted line" });
  const layer = ui.add(svg, "g");
  const line = ui.add(root, "p", { "aria-live": "polite" });

  // Slope and height of the least-squares line.
  const fit = (xs, ys) => {
    const mean = (values) => values.reduce((a, b) => a + b) / values.length;
    const [mx, my] = [mean(xs), mean(ys)];
    let [top, under] = [0, 0];
    xs.forEach((x, i) => {
      top += (x - mx) * (ys[i] - my);
      under += (x - mx) ** 2;
    });
    return { slope: top / under, at: (x) => my + top / under * (x - mx) };
  };
  // A quantile, as NumPy computes it.
  const share = (values, part) => {
    const sorted = [...values].sort((a, b) => a - b);
    const place = part * (sorted.length - 1);
    const below = Math.floor(place);
    const above = sorted[Math.min(below + 1, sorted.length - 1)];
    return sorted[below] + (place - below) * (above - sorted[below]);
  };

  const [x0, x1, y0, y1] = data.span;
  const frame = { left: 46, right: 450, top: 10, bottom: 228 };
  const x = (n) => frame.left
    + (n - x0) / (x1 - x0) * (frame.right - frame.left);
  const y = (n) => frame.bottom
    - (n - y0) / (y1 - y0) * (frame.bottom - frame.top);
  const clip = (n) => Math.max(y0, Math.min(y1, n));

  const update = () => {
    layer.replaceChildren();
    for (let n = Math.ceil(x0); n <= x1; n++) {
      ui.add(layer, "line", { class: "ta-grid", x1: x(n), x2: x(n),
        y1: frame.top, y2: frame.bottom });
      ui.add(layer, "text", { x: x(n), y: frame.bottom + 15,
        "text-anchor": "middle" }, power(n));
    }
    for (let n = Math.ceil(y0); n <= y1; n++) {
      ui.add(layer, "line", { class: "ta-grid", x1: frame.left,
        x2: frame.right, y1: y(n), y2: y(n) });
      ui.add(layer, "text", { x: frame.left - 5, y: y(n) + 4,
        "text-anchor": "end" }, power(n));
    }
    ui.add(layer, "text", { x: (frame.left + frame.right) / 2,
      y: frame.bottom + 34, "text-anchor": "middle" }, "compute C (FLOPs)");
    ui.add(layer, "text", { x: frame.left + 5, y: frame.top + 12,
      class: "ta-halo" }, "best N (parameters)");
    const used = data.groups.filter((_, i) => boxes[i].checked);
    if (used.length >= 2) {
      const xs = used.map((group) => log(group.C));
      const whole = fit(xs, used.map((group) => log(group.N)));
      const draws = used[0].draws.map((_, k) =>
        fit(xs, used.map((group) => log(group.draws[k]))));
      const steps = Array.from({ length: 31 },
        (_, k) => x0 + (x1 - x0) * k / 30);
      const edge = (part) => steps.map((n) =>
        [x(n), y(clip(share(draws.map((each) => each.at(n)), part)))]);
      ui.add(layer, "polygon", { fill: "var(--ta-soft)", points:
        [...edge(0.025), ...edge(0.975).reverse()]
          .map((point) => point.join(",")).join(" ") });
      ui.add(layer, "polyline", { fill: "none", stroke: "var(--ta-blue)",
        "stroke-width": 2.5, points: steps
          .map((n) => `${x(n)},${y(clip(whole.at(n)))}`).join(" ") });
      const slopes = draws.map((each) => each.slope);
      const far = log(data.far);
      const reached = draws.map((each) => each.at(far));
      const low = 10 ** share(reached, 0.025);
      const high = 10 ** share(reached, 0.975);
      line.textContent = `Exponent ${whole.slope.toFixed(2)}, 95% of the ` +
        `resamplings from ${share(slopes, 0.025).toFixed(2)} to ` +
        `${share(slopes, 0.975).toFixed(2)}. At ${times(data.far)} FLOPs ` +
        `the best size would be ` +
        `${Math.round(10 ** whole.at(far)).toLocaleString("en")}, between ` +
        `${Math.round(low).toLocaleString("en")} and ` +
        `${Math.round(high).toLocaleString("en")}: a factor of ` +
        `${(high / low).toPrecision(2)}.`;
    } else {
      line.textContent = "A line needs two groups.";
    }
    data.groups.forEach((group, i) => {
      const own = boxes[i].checked;
      const at = x(log(group.C));
      ui.add(layer, "line", { x1: at, x2: at, stroke: "currentColor",
        "stroke-opacity": own ? 0.8 : 0.3,
        y1: y(clip(log(share(group.draws, 0.025)))),
        y2: y(clip(log(share(group.draws, 0.975)))) });
      ui.add(layer, "circle", { cx: at, cy: y(log(group.N)), r: 5,
        fill: own ? "var(--ta-blue)" : "var(--ta-ground)",
        stroke: "currentColor" });
    });
  };
  update();
}
