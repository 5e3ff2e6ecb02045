// One block, step by step: choose a cell and see which cells fed it.
// data.orders: {pre: steps, post: steps}, a step is {name, values, from,
// input}; from[].slopes and input: for each cell its derivatives.
(root, data, ui) => {
  root.replaceChildren();
  const names = {
    in: "input x", ln1: "LayerNorm 1", attn: "attention",
    r1: "x + attention", ln2: "LayerNorm 2",
    up: "MLP, first half: GELU(\u00b7 W\u2081)", mlp: "MLP, second half",
    r2: "x + MLP",
  };
  const short = { ...names, r1: "+", r2: "+", up: "MLP: D to 4D, GELU",
    mlp: "4D to D" };
  const onStream = ["in", "r1", "r2"];
  let at = data.orders.pre.findIndex((step) => step.name === data.start);
  let [row, column] = [2, 0];

  const top = ui.add(root, "div", { class: "ta-row" });
  const back = ui.button(top, "\u25c0 Back", () => go(at - 1));
  const next = ui.button(top, "Next \u25b6", () => go(at + 1));
  const title = ui.add(top, "strong", { "aria-live": "polite" });
  const order = ui.choice(root, "Order", [["pre", "pre-LN"],
    ["post", "post-LN"]], "pre", () => update());
  const trace = ui.choice(root, "Show what fed the cell",
    [["step", "one step back"], ["input", "from the block\u2019s input"]],
    "step", () => update());
  const body = ui.add(root, "div", { class: "ta-row",
    style: "align-items: flex-start" });
  const map = ui.add(body, "div",
    { style: "flex: 1 1 190px; max-width: 216px" });
  const grids = ui.add(body, "div", { class: "ta-row",
    style: "flex: 1 1 300px; align-items: flex-start; min-width: 0" });
  const line = ui.add(root, "p", { "aria-live": "polite",
    style: "min-height: 4.2em" });

  const go = (to) => {
    at = Math.max(0, Math.min(data.orders.pre.length - 1, to));
    update();
  };

  const drawMap = (steps) => {
    map.replaceChildren();
    const tall = 350;
    const svg = ui.add(map, "svg", { viewBox: `0 0 216 ${tall}`,
      role: "img", "aria-label": `the block; now at ${names[steps[at].name]}`,
    });
    const place = (index) => 322 - index * 36;
    const [stream, branch] = [44, 142];
    const wire = (points, width) => ui.add(svg, "polyline", { points,
      fill: "none", stroke: "currentColor", "stroke-width": width,
      "stroke-opacity": 0.55 });
    wire(`${stream},${tall - 12} ${stream},26`, 3);
    const middle = { "text-anchor": "middle" };
    ui.add(svg, "text", { x: 6, y: 12, style: "font-size: 11px" },
      order() === "pre" ? "\u00d7 12, final norm, LM head" :
        "\u00d7 12, LM head");
    steps.forEach((step, index) => {
      if (step.from.length === 2) {  // a sum: its branch left the stream
        const from = steps.findIndex(
          (other) => other.name === step.from[0].name);
        const [low, y] = [place(from) - 18, place(index)];
        wire(`${stream},${low} ${branch},${low} ${branch},${y} ` +
          `${stream},${y}`, 1.5);
      }
    });
    steps.forEach((step, index) => {
      const sits = onStream.includes(step.name) ||
        (order() === "post" && step.name.startsWith("ln"));
      const y = place(index);
      const here = index === at;
      const group = ui.add(svg, "g", { style: "cursor: pointer" });
      const sum = short[step.name] === "+";
      const width = sum ? 24 : sits ? 84 : 138;
      const x = sits ? stream : branch;
      ui.add(group, "rect", { x: x - width / 2, y: y - 12, width, height: 24,
        rx: sum ? 12 : 5, fill: "var(--ta-ground)",
        stroke: here ? "var(--ta-blue)" : "currentColor",
        "stroke-width": here ? 3 : 1 });
      ui.add(group, "text", { ...middle, x, y: y + 4, style:
        `font-size: ${sum ? 14 : sits ? 10.5 : 11}px;` +
        `font-weight: ${here ? "bold" : "normal"}` }, short[step.name]);
      group.addEventListener("click", () => go(index));
    });
  };

  // A grid of numbers; `shade` gives each cell's colour as a slope.
  const drawGrid = (words, values, shade, choose, small) => {
    const [rows, columns] = [values.length, values[0].length];
    const wide = columns > 4;
    const box = ui.add(grids, "div", { style:
      "min-width: 0;" + (wide
        ? "flex: 1 1 290px; max-width: 468px; overflow-x: auto; padding: 4px"
        : "flex: 1 1 145px; max-width: 210px") });
    ui.add(box, "p", { class: "ta-title" }, words);
    const size = wide ? 24 : 40;
    const edge = 30;
    const svg = ui.add(box, "svg", { class: wide ? "ta-long" : "",
      viewBox: `0 0 ${edge + columns * size + 2} ${rows * size + 30}`,
      ...(choose ? { tabindex: 0, role: "application", "aria-label":
        `${words}; arrow keys choose a cell` } : { role: "img",
        "aria-label": words }) });
    const middle = { "text-anchor": "middle" };
    values.forEach((cells, i) => {
      ui.add(svg, "text", { ...middle, x: edge - 9,
        y: i * size + size / 2 + 4, style: "font-size: 10px; opacity: 0.75" },
      i + 1);
      cells.forEach((value, j) => {
        const index = i * columns + j;
        const group = ui.add(svg, "g");
        const slope = shade(index);
        const chosen = choose && i === row && j === column;
        ui.add(group, "rect", { x: edge + j * size, y: i * size + 1,
          width: size - 2, height: size - 2, class: "ta-grid",
          fill: `var(--ta-${slope < 0 ? "orange" : "blue"})`,
          style: ui.shade(Math.abs(slope)) + (chosen
            ? "stroke: var(--ta-green); stroke-opacity: 1; stroke-width: 3px"
            : "") });
        ui.add(group, "text", { ...middle, x: edge + j * size + size / 2 - 1,
          y: i * size + size / 2 + 4,
          style: `font-size: ${wide ? 9 : 11}px` },
        ui.fixed(value, wide ? 1 : 2));
        if (choose) {
          group.style.cursor = "pointer";
          group.addEventListener("pointerenter", () => choose(i, j));
          group.addEventListener("pointerdown", () => choose(i, j));
        }
      });
    });
    for (let j = 0; j < columns; j++) {
      ui.add(svg, "text", { ...middle, x: edge + j * size + size / 2 - 1,
        y: rows * size + 13, style: "font-size: 10px; opacity: 0.75" },
      j + 1);
    }
    ui.add(svg, "text", { ...middle, x: edge + columns * size / 2,
      y: rows * size + 26, style: "font-size: 10px" }, "channel");
    ui.add(svg, "text", { ...middle, style: "font-size: 10px",
      transform: `translate(10 ${rows * size / 2}) rotate(-90)` },
    "position");
    return svg;
  };

  const update = () => {
    const focused = grids.contains(document.activeElement);
    const steps = data.orders[order()];
    const step = steps[at];
    const columns = step.values[0].length;
    column = Math.min(column, columns - 1);
    const cell = row * columns + column;
    for (const [button, end] of [[back, 0], [next, steps.length - 1]]) {
      // Not `disabled`: that would take the focus from who presses it.
      button.setAttribute("aria-disabled", at === end);
      button.style.opacity = at === end ? 0.4 : 1;
    }
    title.textContent = `Step ${at + 1} of ${steps.length}: ` +
      names[step.name];
    drawMap(steps);
    grids.replaceChildren();
    const sources = trace() === "input" && at > 0
      ? [{ name: "in", slopes: step.input }] : step.from;
    const told = [];
    for (const source of sources) {
      const slopes = source.slopes[cell];
      const most = Math.max(...slopes.map(Math.abs), 1e-9);
      const values = steps.find((s) => s.name === source.name).values;
      drawGrid(`from ${names[source.name]}`, values,
        (index) => slopes[index] / most, null);
      const width = values[0].length;
      const live = slopes.map((slope, index) => [slope, index])
        .filter(([slope]) => Math.abs(slope) >= 0.0005);
      const rows = [...new Set(live.map(([, index]) =>
        Math.floor(index / width) + 1))];
      const [best] = live.sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
      if (!best) continue;
      const [slope, index] = best;
      told.push(`${live.length} cell${live.length > 1 ? "s" : ""} of ` +
        `${names[source.name]} in position${rows.length > 1 ? "s" : ""} ` +
        `${rows.sort().join(", ")} (the largest slope, ` +
        `${ui.fixed(slope, 2)}, at position ` +
        `${Math.floor(index / width) + 1}, channel ${index % width + 1})`);
    }
    const svg = drawGrid(names[step.name], step.values,
      () => 0, (i, j) => {
        if (i === row && j === column) return;
        [row, column] = [i, j];
        update();
      });
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1],
        ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!by) return;
      event.preventDefault();
      const [i, j] = [row + by[0], column + by[1]];
      if (i < 0 || i >= step.values.length || j < 0 || j >= columns) return;
      [row, column] = [i, j];
      update();
    });
    if (focused) svg.focus();
    line.textContent = `Position ${row + 1}, channel ${column + 1} of ` +
      `${names[step.name]} is ` +
      `${ui.fixed(step.values[row][column], 2)}. ` +
      (told.length ? `It was fed by ${told.join(" and by ")}.` :
        "It comes from token and position embedding, or the block below.");
  };
  update();
}
