"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
document.documentElement.classList.add("scripted");
const LEVELS = 10, SVG = "http://www.w3.org/2000/svg";
const make = (name, attributes = {}) => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
};
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, key) => values[key]);
const decimal = value => value.toFixed(2).replace(/^-(?=0\.00$)/, "").replace("-", "\u2212");
const percent = share => share > 0 && share < .005 ? "<1%" : share < 1 && share > .995 ? ">99%"
  : (100 * share).toFixed(0) + "%";
const squares = (node, marks) => {
  node.replaceChildren(...[...marks].map(([kind, path]) => make("path", {class: kind, d: path})));
};
const mark = (marks, kind, x, y) =>
  marks.set(kind, (marks.get(kind) ?? "") + `M${x} ${y}h1v1h-1z`);

// One panel at a time.
for (const stepper of document.querySelectorAll(".stepper")) {
  const panels = [...stepper.children];
  const bar = document.createElement("div");
  bar.className = "bar-of-steps";
  const [back, forward] = ["back", "forward"].map(key => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = data.texts[key];
    return button;
  });
  const slider = document.createElement("input"), said = document.createElement("output");
  Object.assign(slider, {type: "range", min: 1, max: panels.length, value: 1});
  const show = step => {
    const place = Math.min(Math.max(step, 1), panels.length);
    panels.forEach((panel, number) => { panel.hidden = number !== place - 1; });
    back.disabled = place === 1;
    forward.disabled = place === panels.length;
    slider.value = place;
    said.textContent = fill(data.texts.step, {step: place, steps: panels.length});
    slider.setAttribute("aria-label", said.textContent);
  };
  back.addEventListener("click", () => show(Number(slider.value) - 1));
  forward.addEventListener("click", () => show(Number(slider.value) + 1));
  slider.addEventListener("input", () => show(Number(slider.value)));
  bar.append(back, slider, forward, said);
  stepper.prepend(bar);
  show(1);
}

// The fingerprint of one place.
for (const waves of document.querySelectorAll(".waves")) {
  const slider = waves.querySelector("input"), [shown] = waves.querySelectorAll("label output");
  const values = data.positions.values, outputs = waves.querySelectorAll(".legend output");
  const show = () => {
    const place = Number(slider.value) - 1;
    const x = 4 + 392 * place / Math.max(values[0].length - 1, 1);
    waves.querySelector(".cursor").setAttribute("d", `M${x} 0V120`);
    shown.textContent = place + 1;
    outputs.forEach((output, wave) => { output.textContent = decimal(values[wave][place]); });
  };
  slider.addEventListener("input", show);
  show();
}

// Where a head looks, for any layer, head and piece.
for (const reader of document.querySelectorAll(".reader")) {
  const kind = reader.dataset.kind, weights = data.weights[kind];
  const [layer, head] = reader.querySelectorAll("select");
  const queries = [...reader.querySelectorAll(".queries button")];
  const keys = [...reader.querySelectorAll(".keys .piece")];
  const labels = kind === "decoder" ? data.labels.target_in : data.labels.source;
  const cells = reader.querySelector(".cells"), said = reader.querySelector(".said");
  const ring = make("rect", {class: "ring", x: 0, width: keys.length, height: 1});
  cells.parentNode.append(ring);
  let matrix, pinned = Math.min(kind === "encoder" ? data.focus : 1, queries.length - 1);
  const show = place => {
    queries.forEach((button, number) => button.setAttribute("aria-pressed", number === place));
    ring.setAttribute("y", place);
    keys.forEach((key, column) => {
      const share = matrix[place][column];
      key.style.setProperty("--share", Math.sqrt(share));
      key.classList.toggle("strong", share > .3);
      key.querySelector("small").textContent = percent(share);
    });
    const order = labels.map((_, column) => column)
      .sort((a, b) => matrix[place][b] - matrix[place][a]).slice(0, 3)
      .filter(column => matrix[place][column] > 0);
    const found = order.map(column => `${labels[column]} ${percent(matrix[place][column])}`);
    said.textContent = fill(kind === "cross" ? data.texts.writes : data.texts.looks,
      {query: queries[place].textContent, found: found.join(", ")});
  };
  const redraw = () => {
    const heads = weights[layer.value], chosen = Number(head.value);
    const used = chosen < 0 ? heads : [heads[chosen]];
    matrix = heads[0].map((row, y) => row.map((_, x) =>
      used.reduce((sum, one) => sum + one[y][x], 0) / used.length / data.weight_unit));
    const marks = new Map();
    matrix.forEach((row, y) => row.forEach((weight, x) => {
      const level = Math.min(LEVELS, Math.round(LEVELS * Math.sqrt(weight)));
      if (level) mark(marks, "v" + level, x, y);
    }));
    squares(cells, marks);
    show(pinned);
  };
  queries.forEach((button, place) => {
    button.addEventListener("pointerenter", () => show(place));
    button.addEventListener("pointerleave", () => show(pinned));
    button.addEventListener("focus", () => show(place));
    button.addEventListener("click", () => { pinned = place; show(place); });
  });
  layer.addEventListener("change", redraw);
  head.addEventListener("change", redraw);
  redraw();
}

// Scores, weights and the weighted average of any piece and head of the first layer.
for (const bench of document.querySelectorAll(".workbench")) {
  const [piece, head] = bench.querySelectorAll("select");
  const rows = [...bench.querySelectorAll("tbody tr")], {scores, value, query} = data.first_layer;
  const root = Math.sqrt(query[0][0].length);
  const softmax = values => {
    const top = Math.max(...values), powers = values.map(v => Math.exp(v - top));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map(power => power / sum);
  };
  const share = (cell, weight) => {
    cell.firstChild.textContent = percent(weight);
    cell.querySelector("rect").setAttribute("width", 100 * weight);
  };
  const update = () => {
    const line = scores[head.value][piece.value];
    const weights = softmax(line.map(score => score / root)), unscaled = softmax(line);
    rows.forEach((row, place) => {
      const [score, divided, weight, other] = row.querySelectorAll("td");
      score.textContent = decimal(line[place]);
      divided.textContent = decimal(line[place] / root);
      share(weight, weights[place]);
      share(other, unscaled[place]);
    });
    const mixed = value[head.value][0].map((_, column) => weights.reduce(
      (sum, weight, place) => sum + weight * value[head.value][place][column], 0));
    const top = Math.max(...mixed.map(Math.abs)) || 1, marks = new Map();
    mixed.forEach((number, x) => {
      const level = Math.min(LEVELS, Math.ceil(LEVELS * Math.abs(number) / top - .5));
      if (level > 0) mark(marks, `${number > 0 ? "plus" : "minus"} v${level}`, x, 0);
    });
    squares(bench.querySelector(".result .strip"), marks);
    const name = document.createElement("b");
    name.className = "piece";
    name.textContent = data.labels.source[piece.value];
    const [before, after] = fill(data.texts.asks, {focus: "\0", head: Number(head.value) + 1})
      .split("\0");
    bench.querySelector(".caption").replaceChildren(before, name, after);
  };
  piece.addEventListener("change", update);
  head.addEventListener("change", update);
}
