// A pool of pages, two sequences that share some, and copy on write.
// data: pages, size (slots in a page), prompt, A, B (words to come).
(root, data, ui) => {
  root.replaceChildren();
  const { pages: count, size } = data;
  let pool; // [{words, users}]
  let tables; // {A: {pages, length} or null, B: …}
  const fresh = () => {
    pool = Array.from({ length: count }, () => ({ words: [], users: 0 }));
    tables = { A: { pages: [], length: 0, next: 0 }, B: null };
    for (const word of data.prompt) write("A", word);
  };
  const free = () => pool.findIndex((page) => page.users === 0);

  // Append a word; what happened, in words. A full pool changes nothing.
  const write = (name, word) => {
    const table = tables[name];
    const slot = table.length % size;
    const last = table.pages.at(-1);
    let news = "";
    if (slot === 0) {
      const page = free();
      if (page < 0) return null;
      pool[page] = { words: [], users: 1 };
      table.pages.push(page);
      news = ` on the new page ${page}`;
    } else if (pool[last].users > 1 && way() === "copy") {
      const page = free();
      if (page < 0) return null;
      pool[last].users -= 1;
      pool[page] = { words: pool[last].words.slice(0, slot), users: 1 };
      table.pages[table.pages.length - 1] = page;
      news = `: page ${last} was shared, so it was copied to page ${page} ` +
        "first";
    } else if (pool[last].users > 1) {
      news = `: into page ${last}, which the other one lists as well`;
    } else {
      news = ` on page ${last}`;
    }
    pool[table.pages.at(-1)].words[slot] = word;
    table.length += 1;
    return news;
  };
  const read = ({ pages, length }) => pages
    .flatMap((page) => Array.from({ length: size },
      (_, slot) => pool[page].words[slot] ?? "?"))
    .slice(0, length).join(" ");

  const buttons = ui.add(root, "div", { class: "ta-row" });
  const writes = (name) => {
    const table = tables[name];
    if (!table) return show(`${name} does not exist: fork A first.`);
    const word = data[name][table.next % data[name].length];
    const news = write(name, word);
    if (news === null) {
      return show(`No page is free: ${name} has to wait, and nothing ` +
        "has changed.");
    }
    table.next += 1;
    return show(`${name} wrote "${word}"${news}.`);
  };
  ui.button(buttons, "A writes", () => writes("A"));
  ui.button(buttons, "Fork A to B", () => {
    if (tables.B) return show("B exists: free it first.");
    tables.B = { ...tables.A, pages: [...tables.A.pages], next: 0 };
    for (const page of tables.B.pages) pool[page].users += 1;
    return show("B lists A's pages. No page was copied.");
  });
  ui.button(buttons, "B writes", () => writes("B"));
  ui.button(buttons, "Free B", () => {
    if (!tables.B) return show("B does not exist.");
    for (const page of tables.B.pages) pool[page].users -= 1;
    tables.B = null;
    return show("B is gone; pages that nobody lists are free again.");
  });
  ui.button(buttons, "Start again", () => {
    fresh();
    show("A's prompt has six words.");
  });
  const way = ui.choice(root, "Writing into a shared page:",
    [["copy", "copy on write"], ["wrong", "wrong: no copy"]],
    "copy", () => {
      fresh();
      const how = way() === "copy" ? "with copies" : "without copies";
      show(`Started again, ${how}: fork, then let both write.`);
    });

  // The pool: a row for each page.
  const [x0, wide, high] = [50, 65, 28];
  const plot = ui.add(root, "svg", { role: "img",
    viewBox: `0 0 350 ${count * (high + 5) + 4}`,
    style: "max-width: 400px", "aria-label": "The pool of pages" });
  const rows = Array.from({ length: count }, (_, page) => {
    const y = 4 + page * (high + 5);
    ui.add(plot, "text", { x: 2, y: y + 19 }, `page ${page}`);
    const cells = Array.from({ length: size }, (_, slot) => {
      const x = x0 + slot * wide;
      const box = ui.add(plot, "rect", { x, y, width: wide - 2,
        height: high, class: "ta-axis" });
      const text = ui.add(plot, "text", { x: x + wide / 2 - 1, y: y + 19,
        "text-anchor": "middle" });
      return { box, text };
    });
    const users = ui.add(plot, "text",
      { x: x0 + size * wide + 5, y: y + 19 });
    return { cells, users };
  });
  const lists = { A: ui.add(root, "p"), B: ui.add(root, "p") };
  const line = ui.add(root, "p", { "aria-live": "polite" });

  const show = (news) => {
    rows.forEach(({ cells, users }, page) => {
      const { words, users: number } = pool[page];
      cells.forEach(({ box, text }, slot) => {
        const word = number ? words[slot] : undefined;
        box.setAttribute("fill", word ? "var(--ta-soft)" : "none");
        text.textContent = word ?? "";
      });
      const owners = ["A", "B"].filter((name) =>
        tables[name]?.pages.includes(page));
      users.textContent = owners.length ? owners.join(", ") : "free";
      users.setAttribute("font-weight", owners.length > 1 ? "bold"
        : "normal");
    });
    for (const name of ["A", "B"]) {
      const table = tables[name];
      lists[name].textContent = table
        ? `${name}: pages ${table.pages.join(", ")}; reads ` +
          `\u201c${read(table)}\u201d`
        : `${name}: none`;
    }
    const inUse = pool.filter((page) => page.users > 0).length;
    line.textContent = `${news} ${inUse} of ${count} pages in use.`;
  };
  fresh();
  show("A's prompt has six words.");
}
