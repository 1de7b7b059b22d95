"use strict";
/* What is drawn of the weights. A layer is {heads, rows, columns, weight(head, row, column)}. */

const dark = matchMedia("(prefers-color-scheme: dark)");
const headColor = (head, heads, alpha = 1) => {
  // Neighbors differ in lightness too: many heads have few hues between them.
  const lightness = (dark.matches ? 0.76 : 0.58) + (heads > 6 && head % 2 ? 0.08 : -0.02);
  return `oklch(${lightness} 0.16 ${(258 + 360 * head / heads) % 360} / ${alpha})`;
};
const themed = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/* With a decimal where the largest weight beside it is small too. */
const percent = (weight, most = 1) => most < 0.1 ? (100 * weight).toFixed(1) + "%"
  : weight >= 0.005 ? Math.round(100 * weight) + "%" : "<1%";

function meanOfHeads(layer, heads) {
  const mean = new Float32Array(layer.rows * layer.columns);
  for (const head of heads)
    for (let row = 0, place = 0; row < layer.rows; row++)
      for (let column = 0; column < layer.columns; column++, place++)
        mean[place] += layer.weight(head, row, column) / heads.length;
  return mean;
}

function sizedContext(canvas, width, height) {
  // Beyond so many pixels a canvas stays blank on some telephones.
  const scale = Math.min(devicePixelRatio || 1, 8192 / Math.max(width, height));
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

function drawLines(canvas, layer, heads, active, rowHeight) {
  const width = canvas.clientWidth, height = rowHeight * Math.max(layer.rows, layer.columns);
  const context = sizedContext(canvas, width, height);
  const spread = Math.min(2.5, rowHeight * 0.6 / heads.length);
  const faintest = active ? 0.01 : 0.06;
  const rows = active?.query !== undefined ? [active.query] : [...Array(layer.rows).keys()];
  heads.forEach((head, rank) => {
    const shift = (rank - (heads.length - 1) / 2) * spread;
    context.strokeStyle = headColor(head, layer.heads);
    for (const row of rows) {
      const first = active?.key ?? 0, last = active?.key ?? layer.columns - 1;
      for (let column = first; column <= last; column++) {
        const weight = layer.weight(head, row, column);
        if (weight < faintest) continue;
        context.globalAlpha = Math.min(1, active ? 0.08 + weight : 0.75 * weight);
        context.lineWidth = 1 + (active ? 2 : 1) * weight;
        context.beginPath();
        context.moveTo(0, (row + 0.5) * rowHeight + shift);
        context.lineTo(width, (column + 0.5) * rowHeight + shift);
        context.stroke();
      }
    }
  });
}

/* The background of a word: a stripe for each head, as strong as its weight. */
function stripes(layer, heads, row, column, strongest) {
  const most = dark.matches ? 0.5 : 0.55;
  const parts = heads.map((head, rank) => {
    const color = headColor(head, layer.heads, most * layer.weight(head, row, column) / strongest);
    return `${color} ${100 * rank / heads.length}% ${100 * (rank + 1) / heads.length}%`;
  });
  return `linear-gradient(90deg, ${parts.join(", ")})`;
}

/* A matrix with its words; returns where a point of it lies: (x, y) -> {query, key} or null. */
function drawMatrix(canvas, view) {
  const {layer, mean, rows, columns, active, color} = view;
  const room = canvas.parentElement.clientWidth;
  const font = size => `${size}px system-ui, sans-serif`;
  const measure = canvas.getContext("2d");
  measure.font = font(13);
  const widest = words => Math.max(...words.map(word => measure.measureText(word).width));
  const label = Math.min(widest(rows), room * 0.28, 150) + 10;
  const cell = Math.max(2, Math.min(30, Math.floor(8 * (room - label) / columns.length) / 8));
  const size = Math.max(10, Math.min(13, cell * 0.72));
  const top = Math.min(widest(columns), 150) * size / 13 + 12;
  const width = label + cell * columns.length, height = top + cell * rows.length + 2;
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const context = sizedContext(canvas, width, height);
  const peak = Math.max(...rows.map((_, row) => {
    let most = 0;
    for (let column = 0; column < columns.length; column++)
      most = Math.max(most, mean[row * columns.length + column]);
    return most;
  })) || 1;
  context.fillStyle = color;
  for (let row = 0, place = 0; row < rows.length; row++)
    for (let column = 0; column < columns.length; column++, place++) {
      if (mean[place] < 0.002 * peak) continue;
      context.globalAlpha = mean[place] / peak;
      context.fillRect(label + column * cell, top + row * cell, cell, cell);
    }
  context.globalAlpha = 1;
  context.strokeStyle = themed("--edge");
  context.strokeRect(label, top, cell * columns.length, cell * rows.length);
  context.textBaseline = "middle";
  const ink = themed("--ink"), soft = themed("--soft");
  const step = Math.ceil(size * 1.1 / cell);
  const shown = (place, chosen) => place === chosen
    || (place % step === 0 && (chosen === undefined || step === 1 || Math.abs(place - chosen) >= step));
  const letter = chosen => {
    context.fillStyle = chosen ? ink : soft;
    context.font = (chosen ? "bold " : "") + font(size);
  };
  rows.forEach((word, row) => {
    if (!shown(row, active?.query)) return;
    letter(row === active?.query);
    context.textAlign = "right";
    context.fillText(word, label - 6, top + (row + 0.5) * cell, label - 8);
  });
  columns.forEach((word, column) => {
    if (!shown(column, active?.key)) return;
    letter(column === active?.key);
    context.save();
    context.translate(label + (column + 0.5) * cell, top - 6);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(word, 0, 0, top - 8);
    context.restore();
  });
  context.font = font(11);
  context.textAlign = "center";
  if (cell >= 24)
    mean.forEach((weight, place) => {
      if (weight < 0.05) return;
      const row = Math.floor(place / columns.length), column = place % columns.length;
      context.fillStyle = weight > 0.6 * peak ? themed("--on-accent") : ink;
      context.fillText(Math.round(100 * weight), label + (column + 0.5) * cell,
        top + (row + 0.5) * cell);
    });
  context.strokeStyle = ink;
  if (active?.query !== undefined)
    context.strokeRect(label, top + active.query * cell, cell * columns.length, cell);
  if (active?.key !== undefined)
    context.strokeRect(label + active.key * cell, top, cell, cell * rows.length);
  return {peak, at: (x, y) => {
    const key = Math.floor((x - label) / cell), query = Math.floor((y - top) / cell);
    if (key >= columns.length || query >= rows.length || (key < 0 && query < 0)) return null;
    return {...(query >= 0 && {query}), ...(key >= 0 && {key})};
  }};
}

/* A head at a glance; of a long text the largest weight of each patch. */
function drawThumbnail(canvas, layer, head) {
  const patch = Math.ceil(Math.max(layer.rows, layer.columns) / 64);
  const width = Math.ceil(layer.columns / patch), height = Math.ceil(layer.rows / patch);
  canvas.width = width;
  canvas.height = height;
  const largest = new Float32Array(width * height);
  for (let row = 0; row < layer.rows; row++)
    for (let column = 0; column < layer.columns; column++) {
      const place = Math.floor(row / patch) * width + Math.floor(column / patch);
      largest[place] = Math.max(largest[place], layer.weight(head, row, column));
    }
  const context = canvas.getContext("2d");
  context.fillStyle = headColor(head, layer.heads);
  largest.forEach((weight, place) => {
    // The square root shows what is weak too.
    context.globalAlpha = Math.sqrt(weight);
    context.fillRect(place % width, Math.floor(place / width), 1, 1);
  });
}
