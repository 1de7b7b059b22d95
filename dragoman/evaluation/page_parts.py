"""The style and the script of the comparison page; it asks nothing of the network."""

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2328; --grey: #59636e; --line: #d1d9e0;
  --back: #ffffff; --panel: #f6f8fa; --mark: #ffe2a8; --link: #0a53be;
  --s0: #0a53be; --s1: #b3450b; --s2: #1a7f37; --s3: #8250df; --s4: #a40e6b; --s5: #57606a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --grey: #9aa4af; --line: #3a424c;
  --back: #0d1117; --panel: #161b22; --mark: #6b4a00; --link: #79b8ff;
  --s0: #79b8ff; --s1: #ffa657; --s2: #56d364; --s3: #d2a8ff; --s4: #ff9bce; --s5: #b1bac4; } }
* { box-sizing: border-box; } [hidden] { display: none !important; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; color: var(--ink); background: var(--back);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; } .grey, caption, figcaption { color: var(--grey); font-size: .875rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .7rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
caption { text-align: left; padding-bottom: .3rem; }
code { font-size: .8rem; overflow-wrap: anywhere; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); }
figure { margin: 0; } svg { width: 100%; height: auto; max-width: 28rem; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: var(--grey); }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; list-style: none; }
.key span { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem;
  margin-right: .4rem; }
form { display: flex; flex-wrap: wrap; gap: .75rem 1rem; align-items: end; margin: .75rem 0; }
label { display: grid; gap: .2rem; font-size: .875rem; color: var(--grey); }
select, input { font: inherit; color: var(--ink); background: var(--back); padding: .35rem .5rem;
  border: 1px solid var(--line); border-radius: .4rem; min-height: 2.5rem; max-width: 100%; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 1px; }
article { border: 1px solid var(--line); border-radius: .5rem; margin: 0 0 .75rem; padding: .75rem;
  background: var(--panel); }
article h3 { font-size: .875rem; margin: 0 0 .35rem; color: var(--grey); font-weight: 600; }
article dl { margin: 0; }
.texts { display: grid; gap: .2rem .9rem; grid-template-columns: 8rem 1fr; }
.sides { display: grid; gap: .6rem; margin-top: .6rem !important;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); }
.sides > div { border-left: 4px solid var(--line); padding-left: .6rem; }
dt { color: var(--grey); font-size: .875rem; overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
mark { background: var(--mark); color: inherit; border-radius: .2rem; padding: 0 .1em; }
@media (max-width: 34rem) {
  .texts { grid-template-columns: 1fr; } th, td { padding: .3rem .4rem; } }
@media print { form { display: none; } }
"""

SCRIPT: Final = """
"use strict";
const list = document.getElementById("sentences");
const rows = Array.from(list.children).map((row) => ({
  row, line: Number(row.dataset.line), scores: row.dataset.scores.split(" ").map(Number),
  text: row.textContent.toLowerCase() }));
const form = document.querySelector("form");
const shown = document.getElementById("shown");
const keys = {
  difference: (item) => -Math.abs(item.scores[form.other.value] - item.scores[0]),
  better: (item) => item.scores[0] - item.scores[form.other.value],
  worse: (item) => item.scores[form.other.value] - item.scores[0],
  lowest: (item) => item.scores[form.other.value],
  line: (item) => item.line,
};
function update() {
  const key = keys[form.order.value];
  const wanted = form.search.value.toLowerCase();
  let count = 0;
  rows.sort((a, b) => key(a) - key(b) || a.line - b.line);
  for (const item of rows) {
    item.row.hidden = !item.text.includes(wanted);
    count += item.row.hidden ? 0 : 1;
    list.append(item.row);
  }
  shown.textContent = String(count);
}
form.addEventListener("input", update);
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
update();
"""
