// The number of heads against what one attention layer costs.
// data: heads (the slider's stops), start, B, T, D; FLOPs count a
// multiply-add twice, scores take 4 bytes each.
(root, data, ui) => {
  root.replaceChildren();
  const { B, T, D, heads } = data;
  const at = (H) => {
    const scores = B * H * T * T;
    return [
      ["parameters", 4 * (D * D + D), ""],
      ["projections", 8 * B * T * D * D, "FLOP"],
      ["scores, blends", 4 * B * H * T * T * (D / H), "FLOP"],
      ["score memory", 4 * scores, "bytes"],
      ["exponentials", scores, ""],
      ["width of a head", D / H, "columns"],
    ];
  };
  const all = heads.map(at);
  const most = at(1).map((_, i) => Math.max(...all.map((row) => row[i][1])));
  const row = ui.add(root, "div", { class: "ta-row" });
  const range = ui.range(row, "Heads H = ",
    { min: 0, max: heads.length - 1, step: 1,
      value: heads.indexOf(data.start) },
    (index) => heads[index], () => update());
  const box = ui.add(root, "div", { class: "ta-bars",
    style: "grid-template-columns: max-content 1fr max-content; " +
      "text-align: left" });
  const rows = all[0].map(([name]) => {
    ui.add(box, "span", {}, name);
    const track = ui.add(box, "span", { class: "ta-track" });
    const fill = ui.add(track, "span", { class: "ta-fill" });
    fill.style.display = "block";
    return { fill, number: ui.add(box, "span", { class: "ta-number" }) };
  });
  const line = ui.add(root, "p", { "aria-live": "polite" });

  const update = () => {
    const H = heads[range.value];
    const now = at(H);
    const first = at(data.start);
    now.forEach(([, value, unit], i) => {
      rows[i].fill.style.width = `${100 * value / most[i]}%`;
      const changed = value !== first[i][1];
      rows[i].fill.style.background =
        `var(--ta-${changed ? "orange" : "blue"})`;
      const words = unit === "FLOP"
        ? `${(value / 1e9).toFixed(1)} GFLOP`
        : `${value.toLocaleString("en-US")} ${unit}`;
      rows[i].number.textContent = words.trim();
    });
    const factor = H / data.start;
    const times = Number(factor.toFixed(2));
    line.textContent = H === data.start
      ? `GPT-2 small: ${H} heads of ${D / H} columns. The scores of one ` +
        `layer take ${now[3][1] / 2 ** 20} MiB.`
      : `${times} times the heads: ${times} times the score memory ` +
        `(${(now[3][1] / 2 ** 20).toLocaleString("en-US")} MiB), the same ` +
        `parameters and FLOPs, and a head ${D / H} wide instead of ` +
        `${D / data.start}.`;
  };
  update();
}
