/* The state of the page, its controls, and what follows from them. */

const data = JSON.parse(document.getElementById("data").textContent);
const say = data.strings;
const byId = id => document.getElementById(id);
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
const element = (name, attributes = {}, ...children) => {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...children);
  return made;
};
const state = {kind: data.start.kind, layer: data.start.layer, heads: new Set(data.start.heads),
  view: data.start.view, active: null, held: false, layerData: null, mean: null, point: null};
const words = {query: [], key: []};
const range = count => [...Array(count).keys()];
const kindOf = name => data.kinds[name];
const heads = () => [...state.heads].sort((a, b) => a - b);

/* Layers are unpacked when they are first shown, and the oldest given up where they are large. */
const unpacked = new Map();
function unpack(kind, layer) {
  const name = kind + layer;
  if (!unpacked.has(name)) {
    const {rows, columns, heads: count, layers} = kindOf(kind);
    const packed = Uint8Array.from(atob(layers[layer]), letter => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const most = Math.max(2, Math.floor(4e7 / (count * rows * columns)));
    if (unpacked.size >= most) unpacked.delete(unpacked.keys().next().value);
    unpacked.set(name, new Response(stream).arrayBuffer().then(buffer => {
      const peaks = new Uint16Array(buffer, 0, count * rows);
      const values = new Uint8Array(buffer, 2 * count * rows);
      const weight = (head, row, column) => peaks[head * rows + row] / 65535
        * values[(head * rows + row) * columns + column] / 255;
      return {heads: count, rows, columns, weight};
    }));
  }
  return unpacked.get(name);
}

const plain = token => token.joined ? "·" + token.text : token.text;
const named = (side, place) => {
  const tokens = data.tokens[kindOf(state.kind)[side === "query" ? "queries" : "keys"]];
  return tokens[place];
};
const strong = token => element("b", {}, element("bdi", {textContent: plain(token)}));
/* A sentence with words in bold in its places. */
function sentence(text, tokens) {
  return text.split(/(\{\w+\})/).map(part =>
    part.startsWith("{") ? strong(tokens[part.slice(1, -1)]) : part);
}

function fillWords(side, list) {
  const tokens = data.tokens[kindOf(state.kind)[side === "query" ? "queries" : "keys"]];
  list.replaceChildren();
  const text = tokens === data.tokens.source ? 0 : 1;
  list.dir = data.directions[text];
  list.lang = document.querySelectorAll(".pair dd")[text].lang;
  words[side] = tokens.map((token, place) => {
    const item = element("li", {role: "option", tabIndex: place ? -1 : 0,
      className: (token.joined ? "joined" : "") + (token.mark ? " mark" : "")},
    element("bdi", {textContent: token.text}));
    Object.assign(item.dataset, {side, place});
    item.ariaSelected = "false";
    if (place && !token.close) list.append(" ");
    list.append(item);
    return item;
  });
  byId(side + "-title").textContent = say[side === "query" ? "queries" : "keys"][state.kind];
}

function shadeWords() {
  const {active, mean} = state, {rows, columns} = kindOf(state.kind), chosen = heads();
  const one = chosen.length > 0 && (active?.query === undefined) !== (active?.key === undefined);
  const from = active?.query === undefined ? "key" : "query";
  const cell = place => from === "query" ? [active.query, place] : [place, active.key];
  const weight = place => mean[cell(place)[0] * columns + cell(place)[1]];
  // In running text the strongest stands for all: there are no lines to compare it with.
  const strongest = one && state.view === "text"
    ? Math.max(...range(from === "query" ? columns : rows).map(weight)) || 1 : 1;
  for (const side of ["query", "key"])
    words[side].forEach((item, place) => {
      const self = active?.[side] === place;
      item.classList.toggle("active", self);
      item.ariaSelected = String(self);
      item.style.background = "";
      delete item.dataset.share;
      if (!one || side === from) return;
      if (weight(place) >= 0.02) item.dataset.share = percent(weight(place));
      item.style.background = stripes(state.layerData, chosen, ...cell(place), strongest);
      if (state.view === "text" && weight(place) === strongest) bringIntoView(item);
    });
}

/* Scrolls the list of a word, not the page. */
function bringIntoView(item) {
  const list = item.parentElement, {offsetTop: top, offsetHeight: height} = item;
  if (top < list.scrollTop || top + height > list.scrollTop + list.clientHeight)
    list.scrollTop = top - (list.clientHeight - height) / 2;
}

function entries(side, weights) {
  const most = Math.max(...weights);
  return range(weights.length).filter(place => weights[place] >= Math.max(0.001, 0.05 * most))
    .sort((a, b) => weights[b] - weights[a]).slice(0, 8)
    .map(place => element("span", {className: "entry"},
      element("bdi", {textContent: plain(named(side, place))}), " ",
      element("data", {value: weights[place].toFixed(4), textContent: percent(weights[place], most)})));
}

/* Says in words what is shown: all of a word, or one cell. */
function readOut() {
  const {active, mean, kind} = state, {rows, columns} = kindOf(kind), chosen = heads();
  const readout = byId("readout"), lines = [];
  const which = chosen.length === 1 ? fill(say.head, {number: chosen[0] + 1})
    : fill(say.mean, {count: chosen.length});
  const row = query => range(columns).map(column => mean[query * columns + column]);
  const column = key => range(rows).map(query => mean[query * columns + key]);
  const line = (...parts) => lines.push(element("p", {}, ...parts));
  if (!chosen.length) line(say.none);
  else if (!active) {
    const rest = {lines: say.rest, text: say.rest_text, matrix: say.rest_matrix}[state.view];
    line(element("span", {className: "soft",
      textContent: fill(rest, {peak: percent(state.peak, state.peak), hint: say.hint})}));
  } else if (active.query !== undefined && active.key !== undefined) {
    const weight = mean[active.query * columns + active.key];
    line(...sentence(say.cell, {query: named("query", active.query), key: named("key", active.key)}),
      ": ", element("data", {value: weight.toFixed(4), textContent: percent(weight, state.peak)}),
      element("span", {className: "soft", textContent: ` (${which})`}));
    if (chosen.length > 1)
      line(...chosen.map(head => element("span", {className: "entry"}, swatch(head),
        percent(state.layerData.weight(head, active.query, active.key), state.peak))));
  } else {
    const note = element("span", {className: "soft", textContent: ` (${which})`});
    const {query, key} = active, both = kind === "encoder";
    if (query !== undefined || both) {
      const place = query ?? key;
      const next = kind === "decoder" ? data.tokens.target_out[place] : null;
      line(...sentence(say.from[kind], {word: named("query", place), next}), note, ":",
        ...entries("key", row(place)));
    }
    if (key !== undefined || both) {
      const place = key ?? query;
      line(...sentence(say.to[kind], {word: named("key", place)}), ...(both ? [] : [note]), ":",
        ...entries("query", column(place)));
    }
  }
  readout.replaceChildren(...lines);
}

const swatch = head => {
  const dot = element("span", {className: "dot"});
  dot.style.background = headColor(head, kindOf(state.kind).heads);
  return dot;
};

function draw() {
  if (!state.layerData) return;
  const matrix = state.view === "matrix", words = byId("words");
  byId("matrix-frame").hidden = !matrix;
  words.hidden = matrix;
  words.className = state.view === "text" ? "flow" : "sides";
  byId("board").className = state.view === "lines" ? "split" : "";
  const long = Math.max(state.layerData.rows, state.layerData.columns) > 60;
  words.classList.toggle("long", long);
  const rowHeight = long ? 22 : 30;
  words.style.setProperty("--row", rowHeight + "px");
  shadeWords();
  state.peak = 0;
  if (state.view === "lines")
    drawLines(byId("lines"), state.layerData, heads(), state.active, rowHeight);
  if (matrix) {
    const {queries, keys} = kindOf(state.kind), chosen = heads();
    const drawn = drawMatrix(byId("matrix"), {layer: state.layerData, mean: state.mean,
      rows: data.tokens[queries].map(plain), columns: data.tokens[keys].map(plain),
      active: state.active, color: chosen.length === 1
        ? headColor(chosen[0], state.layerData.heads) : themed("--accent")});
    state.point = drawn.at;
    state.peak = drawn.peak;
  }
  readOut();
}

function activate(active, held = false) {
  state.active = active;
  state.held = held;
  draw();
}

async function showLayer() {
  const {kind, layer} = state;
  const found = await unpack(kind, layer);
  if (kind !== state.kind || layer !== state.layer) return;
  state.layerData = found;
  showHeads();
}

function showHeads() {
  state.mean = meanOfHeads(state.layerData, heads());
  for (const box of document.querySelectorAll("#heads input"))
    box.checked = state.heads.has(Number(box.value));
  for (const button of document.querySelectorAll("#overview button")) {
    const {layer, head} = button.dataset;
    button.ariaPressed = String(Number(layer) === state.layer && state.heads.has(Number(head)));
  }
  draw();
}

/* Radio buttons or check boxes that look like the keys of a keyboard. */
function choice(type, name, value, label, checked) {
  return element("label", {}, element("input", {type, name, value, checked}),
    element("span", {textContent: label}));
}

async function showKind() {
  const {kind} = state, {layers, heads: count} = kindOf(kind);
  state.layer = Math.min(state.layer, layers.length - 1);
  state.heads = new Set([...state.heads].filter(head => head < count));
  state.active = null;
  state.held = false;
  byId("explanation").textContent = say.explanations[kind];
  byId("layers").replaceChildren(...range(layers.length).map(layer =>
    choice("radio", "layer", layer, layer + 1, layer === state.layer)));
  byId("heads").replaceChildren(...range(count).map(head => {
    const box = choice("checkbox", "head", head, head + 1, state.heads.has(head));
    box.className = "head";
    box.lastChild.style.borderBottomColor = headColor(head, count);
    return box;
  }), element("button", {type: "button", id: "all", textContent: say.all}));
  fillWords("query", byId("queries"));
  fillWords("key", byId("keys"));
  fillOverview();
  fillSummaries();
  await showLayer();
}

function fillSummaries() {
  const {summaries, heads: count, mark} = kindOf(state.kind);
  const names = Object.keys(say.columns).filter(name => summaries[name]);
  const header = element("tr", {}, element("th", {}), ...names.map(name => element("th",
    {scope: "col", textContent: fill(say.columns[name], {mark})})));
  const rows = range(count).map(head => {
    const button = element("button", {type: "button"}, swatch(head),
      fill(say.head, {number: head + 1}));
    button.dataset.head = head;
    const cells = names.map(name => {
      const value = summaries[name][state.layer][head];
      const share = name !== "entropy" && name !== "distance";
      const cell = element("td", {textContent: share ? percent(value) : value.toFixed(2)});
      if (share && value >= 0.3) cell.style.background = headColor(head, count, 0.35 * value);
      cell.dataset.name = name;
      return cell;
    });
    return element("tr", {}, element("th", {scope: "row"}, button), ...cells);
  });
  byId("summaries").replaceChildren(element("thead", {}, header), element("tbody", {}, ...rows));
}

async function fillOverview() {
  const kind = state.kind, {layers, heads: count} = kindOf(kind);
  const rows = range(layers.length).map(layer => element("div", {},
    element("span", {className: "number", textContent: layer + 1}),
    ...range(count).map(head => {
      const button = element("button", {type: "button"}, element("canvas"));
      button.ariaLabel = button.title = fill(say.cell_name, {layer: layer + 1, head: head + 1});
      Object.assign(button.dataset, {layer, head});
      return button;
    })));
  byId("overview").replaceChildren(...rows);
  for (const layer of range(layers.length)) {
    const found = await unpack(kind, layer);
    if (kind !== state.kind) return;
    rows[layer].querySelectorAll("canvas").forEach((canvas, head) =>
      drawThumbnail(canvas, found, head));
  }
}

byId("controls").addEventListener("change", ({target}) => {
  if (target.name === "kind") { state.kind = target.value; showKind(); }
  if (target.name === "layer") {
    state.layer = Number(target.value);
    fillSummaries();
    showLayer();
  }
  if (target.name === "view") { state.view = target.value; draw(); }
  if (target.name === "head") {
    if (target.checked) state.heads.add(Number(target.value));
    else state.heads.delete(Number(target.value));
    showHeads();
  }
});
byId("controls").addEventListener("submit", event => event.preventDefault());
document.addEventListener("click", ({target}) => {
  const button = target.closest("button");
  if (button?.id === "all") state.heads = new Set(range(kindOf(state.kind).heads));
  else if (button?.dataset.head) state.heads = new Set([Number(button.dataset.head)]);
  else {
    if (state.held && !target.closest("#stage, #readout, form")) activate(null);
    return;
  }
  if (button.dataset.layer && Number(button.dataset.layer) !== state.layer) {
    state.layer = Number(button.dataset.layer);
    document.querySelectorAll("#layers input")[state.layer].checked = true;
    fillSummaries();
    showLayer();
  } else showHeads();
});

/* A word is shown while it is pointed at or has the focus; a click or a tap holds it. */
const wordOf = ({target}) => {
  const item = target.closest(".words li");
  return item && {[item.dataset.side]: Number(item.dataset.place)};
};
const same = (a, b) => a?.query === b?.query && a?.key === b?.key;
const area = byId("words");
area.addEventListener("pointerover", event => {
  const word = wordOf(event);
  if (!state.held && event.pointerType === "mouse" && (word || state.active)) activate(word);
});
area.addEventListener("pointerleave", () => { if (!state.held) activate(null); });
area.addEventListener("focusin", event => {
  const word = wordOf(event);
  if (word && event.target.matches(":focus-visible")) activate(word);
});
area.addEventListener("focusout", () => { if (!state.held) activate(null); });
area.addEventListener("click", event => {
  const word = wordOf(event);
  if (word) activate(state.held && same(word, state.active) ? null : word,
    !(state.held && same(word, state.active)));
});
area.addEventListener("keydown", event => {
  const item = event.target.closest(".words li");
  if (!item) return;
  const {side} = item.dataset, place = Number(item.dataset.place), last = words[side].length - 1;
  const other = side === "query" ? "key" : "query", flow = state.view === "text";
  const across = words[other][Math.min(place, words[other].length - 1)];
  const goal = {ArrowDown: words[side][place + 1], ArrowUp: words[side][place - 1],
    ArrowRight: flow ? words[side][place + 1] : across,
    ArrowLeft: flow ? words[side][place - 1] : across,
    Home: words[side][0], End: words[side][last]}[event.key];
  if (["Enter", " "].includes(event.key)) item.click();
  else if (!goal) return;
  else {
    words[goal.dataset.side].forEach(word => { word.tabIndex = word === goal ? 0 : -1; });
    goal.focus();
  }
  event.preventDefault();
});
document.addEventListener("keydown", event => { if (event.key === "Escape") activate(null); });

const matrix = byId("matrix");
const pointed = event => {
  const box = matrix.getBoundingClientRect();
  return state.point?.(event.clientX - box.left, event.clientY - box.top) ?? null;
};
matrix.addEventListener("pointermove", event => {
  const cell = pointed(event);
  if (!state.held && !same(cell, state.active)) activate(cell);
});
matrix.addEventListener("click", event => {
  const cell = pointed(event);
  activate(cell, cell !== null && !(state.held && same(cell, state.active)));
});
matrix.addEventListener("pointerleave", () => { if (!state.held) activate(null); });
matrix.addEventListener("keydown", event => {
  const move = {ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1]}[event.key];
  if (!move) return;
  event.preventDefault();
  const within = (value, count) => Math.max(0, Math.min(count - 1, value));
  const {query = -move[0], key = -move[1]} = state.active ?? {};
  activate({query: within(query + move[0], state.layerData.rows),
    key: within(key + move[1], state.layerData.columns)}, true);
});

addEventListener("resize", draw);
dark.addEventListener("change", showKind);
if (typeof DecompressionStream === "undefined") byId("readout").textContent = say.old;
else showKind().then(() => { document.documentElement.dataset.ready = "yes"; });
