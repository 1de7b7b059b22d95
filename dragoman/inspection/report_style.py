"""Style and script of the training report: all that the page needs, nothing from elsewhere."""

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --card: #f6f7f9; --ink: #1b1f24;
  --soft: #59636e; --edge: #d9dee4; --tone0: #2563c9; --tone1: #c2410c; --tone2: #177245;
  --tone3: #7043b8; --good: #177245; --changed: #fff3d1; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --card: #1d2127; --ink: #e7eaee;
  --soft: #a0a9b4; --edge: #363d46; --tone0: #78a9ff; --tone1: #ff9a62; --tone2: #5fd39a;
  --tone3: #c3a1ff; --good: #5fd39a; --changed: #3d3413; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--ground);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { margin: .5rem 0; }
.soft, .unit, figcaption .unit { color: var(--soft); }
.unit { font-weight: 400; font-size: .85rem; }
code, pre { font: .85rem/1.5 ui-monospace, monospace; }
pre { white-space: pre-wrap; background: var(--card); padding: .75rem; border-radius: .5rem; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: .5rem;
  margin: 1rem 0; padding: 0; list-style: none; }
.tiles li { background: var(--card); border-radius: .5rem; padding: .6rem .75rem; }
.tiles strong { display: block; font-size: 1.3rem; line-height: 1.3; }
.tiles span { color: var(--soft); font-size: .85rem; }
.charts { display: grid; gap: 1.25rem 2rem; grid-template-columns: 1fr 1fr; }
.charts .chart:first-child { grid-column: 1 / -1; }
@media (max-width: 44rem) { .charts { grid-template-columns: 1fr; } .steps .odd { display: none; }
  .tiles { grid-template-columns: 1fr 1fr; } }
.chart { margin: 0; min-width: 0; }
figcaption { font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: .1rem 0 .4rem; padding: 0;
  list-style: none; font-size: .85rem; }
.swatch { display: inline-block; width: 1.2rem; height: .25rem; margin-right: .4rem;
  vertical-align: middle; background: currentColor; border-radius: 1px; }
.tone0 { color: var(--tone0); } .tone1 { color: var(--tone1); }
.tone2 { color: var(--tone2); } .tone3 { color: var(--tone3); }
.frame { display: grid; grid-template-columns: 3.4rem 1fr; margin: .6rem .6rem 0 0; }
.scale, .steps, .axis { position: relative; font-size: .75rem; color: var(--soft);
  white-space: nowrap; }
.scale span { position: absolute; right: .5rem; transform: translateY(-50%); }
.axis { top: .2rem; padding-right: .5rem; text-align: right; }
.steps { grid-column: 2; height: 1.3rem; }
.steps span { position: absolute; top: .2rem; transform: translateX(-50%); }
.plot { position: relative; height: 11rem; cursor: crosshair; touch-action: pan-y; }
.charts .chart:first-child .plot { height: 16rem; }
.plot:focus-visible { outline: 2px solid var(--tone0); outline-offset: 2px; }
.plot svg { display: block; width: 100%; height: 100%; overflow: clip;
  overflow-clip-margin: 4px; }
.plot path { fill: none; vector-effect: non-scaling-stroke; }
.line { stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.line.faint { stroke-width: 1; opacity: .3; }
.dots { stroke: currentColor; stroke-width: 6; stroke-linecap: round; }
.grid { stroke: var(--edge); stroke-width: 1; }
.mark { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 3 3; }
.cursor { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--ink); }
.readout { font-size: .85rem; min-height: 1.5em; margin: .1rem 0 0 3.4rem;
  font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: start; vertical-align: top; padding: .35rem .75rem .35rem 0;
  border-bottom: 1px solid var(--edge); }
th { font-weight: 600; } tbody th { font-weight: 400; color: var(--soft);
  min-width: 6.5rem; }
td.number, th.number { text-align: end; font-variant-numeric: tabular-nums; white-space: nowrap;
  width: 1%; }
.sample { background: var(--card); border-radius: .5rem; padding: .25rem .9rem .75rem;
  margin: 0 0 1rem; }
.sample .text, td.text { white-space: pre-wrap; }
td, code { overflow-wrap: anywhere; }
.sample dt { color: var(--soft); font-size: .85rem; margin-top: .5rem; }
.sample dd { margin: 0; }
.settings { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr));
  gap: 0 2rem; }
.changed td { background: var(--changed); }
summary { cursor: pointer; padding: .3rem 0; }
@media print { body { max-width: none; } .chart, .sample { break-inside: avoid; } }
"""

SCRIPT = """
"use strict";
const number = value => Math.abs(value) < 1e-3 && value !== 0 ? value.toExponential(2)
  : value.toLocaleString("en", {maximumSignificantDigits: Math.abs(value) >= 1000 ? 6 : 4});
const clock = seconds => {
  const two = n => String(n).padStart(2, "0"), m = Math.floor(seconds / 60);
  return (m >= 60 ? Math.floor(m / 60) + ":" + two(m % 60) : m) + ":" + two(seconds % 60);
};
for (const chart of document.querySelectorAll(".chart")) {
  const data = JSON.parse(chart.querySelector("script").textContent).lines;
  const last = Number(chart.dataset.last), plot = chart.querySelector(".plot");
  const cursor = chart.querySelector(".cursor"), readout = chart.querySelector(".readout");
  const resting = readout.textContent;
  const stops = [...new Set(data.flatMap(line => line.steps))].sort((a, b) => a - b);
  const nearest = (steps, step) => {
    let low = 0, high = steps.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1; else high = middle;
    }
    return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
  };
  let place = -1;
  const show = index => {
    place = Math.max(0, Math.min(stops.length - 1, index));
    const step = stops[place];
    cursor.hidden = false;
    cursor.style.left = 100 * step / last + "%";
    let seconds = 0, closest = Infinity;
    const parts = data.map(line => {
      const at = nearest(line.steps, step);
      if (Math.abs(line.steps[at] - step) < closest) {
        closest = Math.abs(line.steps[at] - step);
        seconds = line.seconds[at];
      }
      const text = line.name + " " + number(line.values[at]);
      return line.exponential ? text + " (perplexity " + number(Math.exp(line.values[at])) + ")"
        : text;
    });
    readout.textContent = ["step " + step.toLocaleString("en"), clock(seconds), ...parts]
      .join("  \\u00b7  ");
  };
  const hide = () => { cursor.hidden = true; readout.textContent = resting; place = -1; };
  if (!stops.length) continue;
  const follow = event => {
    const box = plot.getBoundingClientRect();
    show(nearest(stops, (event.clientX - box.left) / box.width * last));
  };
  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  plot.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") hide(); });
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", event => {
    const moves = {ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10,
      Home: -stops.length, End: stops.length};
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(place < 0 && event.key !== "End" ? 0 : place + moves[event.key]);
  });
}
"""
