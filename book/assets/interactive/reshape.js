// T positions of D columns as one row of numbers, and the heads made of it.
// Select a number with mouse, finger or arrow keys and follow it.
(root, data, ui) => {
  root.replaceChildren();
  const { T, D } = data;
  const colours = ["blue", "orange", "green"];
  const cell = 30;
  let chosen = 13;

  const top = ui.add(root, "div", { class: "ta-row" });
  const rule = ui.choice(top, "Rule",
    [["right", "cut, then swap (right)"], ["view", "view alone (wrong)"],
      ["strided", "strided (another layer)"]],
    "right", () => draw());
  const heads = ui.choice(top, "Heads", [["2", "2"], ["3", "3"]], "2",
    () => draw());
  const panels = ui.add(root, "div", { class: "ta-row",
    style: "align-items: flex-start" });
  const left = ui.panel(panels, "x: positions \u00d7 columns");
  const right = ui.panel(panels, "");
  const title = right.firstChild;
  const line = ui.add(root, "p", { "aria-live": "polite" });
  const count = ui.add(root, "p", {});

  // The number of x that head h has in row r, column c.
  const source = (H, h, r, c) => {
    const Dh = D / H;
    if (rule() === "view") return h * T * Dh + r * Dh + c;
    if (rule() === "strided") return r * D + c * H + h;
    return r * D + h * Dh + c;
  };

  const grid = (svg, x0, y0, rows, columns, number, H) => {
    const places = [];
    for (let r = 0; r < rows; r++) {
      ui.add(svg, "text", { x: x0 - 7, y: y0 + r * cell + 20,
        "text-anchor": "end", style: "opacity: 0.75" }, r);
      for (let c = 0; c < columns; c++) {
        const n = number(r, c);
        const [x, y] = [x0 + c * cell, y0 + r * cell];
        const home = Math.floor((n % D) / (D / H));
        const box = ui.add(svg, "rect", { x, y, width: cell - 2,
          height: cell - 2, fill: `var(--ta-${colours[home]})`,
          style: "cursor: pointer" });
        ui.add(svg, "text", { x: x + cell / 2 - 1, y: y + 19,
          "text-anchor": "middle", style: "pointer-events: none" }, n);
        box.addEventListener("pointerdown", () => pick(n));
        box.addEventListener("pointerenter", (event) => {
          if (event.buttons === 1) pick(n);  // drawn over the numbers
        });
        places.push({ n, r, c, box });
      }
    }
    return places;
  };

  let places = [];
  let found = [];
  let plane = null;
  const pick = (n) => {
    chosen = n;
    show();
  };

  const draw = () => {
    const H = Number(heads());
    const Dh = D / H;
    left.querySelector("svg")?.remove();
    right.querySelector("svg")?.remove();
    title.textContent = `heads: (H, T, Dh) = (${H}, ${T}, ${Dh})`;
    plane = ui.add(left, "svg", { tabindex: 0, role: "group",
      viewBox: `0 0 ${D * cell + 60} ${T * cell + 44}` });
    const edge = 44;
    ui.add(plane, "text", { "text-anchor": "middle",
      transform: `translate(14 ${24 + T * cell / 2}) rotate(-90)` },
    "position");
    for (let c = 0; c < D; c++) {
      ui.add(plane, "text", { x: edge + (c + 0.5) * cell - 1, y: 16,
        "text-anchor": "middle", style: "opacity: 0.75" }, c);
    }
    places = grid(plane, edge, 24, T, D, (r, c) => r * D + c, H);
    plane.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -D,
        ArrowDown: D }[event.key];
      if (!step) return;
      event.preventDefault();
      pick((chosen + step + T * D) % (T * D));
    });

    // Wide enough for three heads, so that cells keep their size.
    const svg = ui.add(right, "svg",
      { viewBox: `0 0 ${D * cell + 102} ${T * cell + 44}` });
    found = [];
    for (let h = 0; h < H; h++) {
      const x0 = 34 + h * (Dh * cell + 34);
      ui.add(svg, "text", { x: x0 + Dh * cell / 2, y: 16,
        "text-anchor": "middle" }, `head ${h}`);
      grid(svg, x0, 24, T, Dh, (r, c) => source(H, h, r, c), H)
        .forEach((place) => found.push({ ...place, h }));
    }
    ui.add(svg, "text", { x: 34, y: T * cell + 40, style: "opacity: 0.75" },
      "rows: positions, to attention");
    show();
  };

  const show = () => {
    const H = Number(heads());
    const Dh = D / H;
    for (const place of [...places, ...found]) {
      const here = place.n === chosen;
      place.box.style.fillOpacity = here ? "var(--ta-fullest)" : 0.28;
      place.box.setAttribute("stroke", here ? "currentColor" : "none");
      place.box.setAttribute("stroke-width", here ? 2.5 : 0);
    }
    const [t, d] = [Math.floor(chosen / D), chosen % D];
    const at = found.find((place) => place.n === chosen);
    const formula = {
      right: `${D}\u00b7t + ${Dh}\u00b7h + c`,
      view: `${T * Dh}\u00b7h + ${Dh}\u00b7t + c`,
      strided: `${D}\u00b7t + ${H}\u00b7c + h`,
    }[rule()];
    line.textContent =
      `Number ${chosen} is column ${d} of position ${t}. This rule, place = ` +
      `${formula}, puts it into head ${at.h}, row ${at.r}, column ${at.c}` +
      (at.r === t ? "." : `: attention takes it for position ${at.r}.`);
    plane.setAttribute("aria-label", "Positions by columns; arrow keys " +
      `select a number. ${line.textContent}`);
    const inside = found.filter((place) => place.h === 0);
    const list = (numbers) => [...new Set(numbers)]
      .sort((a, b) => a - b).join(", ");
    count.textContent =
      `Head 0 holds numbers of positions ` +
      `${list(inside.map(({ n }) => Math.floor(n / D)))} and of columns ` +
      `${list(inside.map(({ n }) => n % D))}.`;
  };
  draw();
}
