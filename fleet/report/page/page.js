"use strict";
/* Everything that comes from evidence is put in as text, never as markup. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const MARKS = ["●", "▲", "■", "◆", "✚", "✖"];

function el(name, attrs, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attrs || {})) node.setAttribute(key, value);
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}
function shape(name, attrs, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attrs)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = String(text);
  return node;
}
function picture(width, height, label) {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
}
const percent = (share) => (share === null || share === undefined ? "not bounded" : `≤ ${(100 * share).toPrecision(3)} %`);
const brief = (digest) => (digest || "").replace("sha256:", "").slice(0, 12);
function facts(pairs) {
  const body = el("tbody", {});
  for (const [key, value] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    body.append(el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, value)));
  }
  return el("table", {}, body);
}
function section(title, ...content) {
  const kept = content.filter((each) => each);
  return kept.length ? el("section", {}, el("h3", {}, title), ...kept) : null;
}

function overTime(cell) {
  const told = cell.over_time;
  if (!told.length) return null;
  const units = [...new Set(told.map((t) => t.unit))].sort();
  const roots = cell.classes.map((c) => c.root);
  const width = 640, left = 12, top = 8, step = 20, height = top + step * units.length + 26;
  const first = told[0].at_s, span = Math.max(told[told.length - 1].at_s - first, 1);
  const svg = picture(width, height, `${told.length} attempts over time, a mark for each root`);
  units.forEach((unit, row) => {
    const y = top + step * row + 10;
    svg.append(shape("line", { x1: left, x2: width - 12, y1: y, y2: y, class: "axis" }));
    svg.append(shape("text", { x: left, y: y - 3 }, unit.length > 60 ? unit.slice(0, 60) + "…" : unit));
  });
  for (const t of told) {
    const place = roots.indexOf(t.root);
    const mark = t.state !== "COMPLETE" ? "×" : place < 0 ? "·" : MARKS[Math.min(place, MARKS.length - 1)];
    const x = left + 8 + ((t.at_s - first) / span) * (width - left - 40);
    const node = shape("text", { x, y: top + step * units.indexOf(t.unit) + 15, class: "mark" }, mark);
    node.append(shape("title", {}, `${t.at}: ${t.attempt} ${t.state} ${t.cause || brief(t.root)}`));
    svg.append(node);
  }
  svg.append(shape("text", { x: left, y: height - 6 }, told[0].at));
  svg.append(shape("text", { x: width - 12, y: height - 6, "text-anchor": "end" }, told[told.length - 1].at));
  const list = el("table", {}, el("thead", {}, el("tr", {}, ...["mark", "root", "replays", "units", "from", "to"].map((h) => el("th", { scope: "col" }, h)))));
  const body = el("tbody", {});
  cell.classes.forEach((c, i) =>
    body.append(el("tr", {}, ...[MARKS[Math.min(i, MARKS.length - 1)], el("code", {}, brief(c.root)), c.replays, c.units.join(", "), c.first, c.last].map((v, column) => el("td", column === 3 ? {} : { class: "short" }, v)))));
  list.append(body);
  const attempts = el("details", {}, el("summary", {}, `${told.length} attempts`), el("table", {}, el("tbody", {}, ...told.map((t) =>
    el("tr", {}, ...[t.at, el("code", {}, t.attempt), t.state, t.cause || brief(t.root), t.campaign].map((v) => el("td", {}, v)))))));
  return el("div", {}, svg, list, attempts);
}

function marginsOf(cell) {
  const found = cell.margins;
  if (!found || !found.records) return null;
  const most = Math.max(...found.bins.map((b) => b.records), 1);
  const width = 520, height = 150, each = (width - 20) / found.bins.length;
  const svg = picture(width, height, `how near each of ${found.records} records stands to another token, in ulps`);
  found.bins.forEach((bin, i) => {
    const tall = (bin.records / most) * (height - 50);
    const bar = shape("rect", { x: 10 + i * each, y: height - 30 - tall, width: each - 3, height: tall, class: "bar" });
    bar.append(shape("title", {}, `from ${bin.from} ulps: ${bin.records} records`));
    svg.append(bar);
    if (bin.records) svg.append(shape("text", { x: 10 + i * each + each / 2, y: height - 34 - tall, "text-anchor": "middle" }, bin.records));
    if (i % 3 === 0) svg.append(shape("text", { x: 10 + i * each, y: height - 16 }, bin.from));
  });
  svg.append(shape("text", { x: 10, y: height - 2 }, "ulps between the chosen token and the next, smallest step of a record"));
  const near = found.nearest.map((n) => `${n.sample} (${n.arm}): ${n.ulps} ulps`).join("; ");
  return el("div", {}, svg, el("p", { class: "dim" }, `${found.exact_ties} exact ties. Nearest: ${near}`));
}

function tree(culprit) {
  if (!culprit || !culprit.path) return null;
  const parts = culprit.path.split(".");
  let inner = null;
  for (let i = parts.length - 1; i >= 0; i--) {
    const last = i === parts.length - 1;
    const name = el("span", last ? { class: "culprit" } : {}, last ? `${parts[i]} (${culprit.class || "module"})` : parts[i]);
    inner = el("ul", { class: "tree" }, el("li", {}, name, inner));
  }
  const told = ["kind", "step", "unique", "repeats", "shape", "dtype", "source"].map((key) => [key, culprit[key] === undefined ? null : Array.isArray(culprit[key]) ? culprit[key].join(" × ") : culprit[key]]);
  return el("div", {}, inner, facts(told));
}

function difference(first) {
  if (!first) return null;
  const rows = [["sample", first.sample_id], ["arm", first.arm], ["what", first.words || first.stage], ["attempts", (first.attempts || []).join(" and ")]];
  const c = first.contested;
  if (c) rows.push(["contested", `step ${c.step}: token ${c.tokens[0]} against ${c.tokens[1]}`]);
  const sides = ["a", "b"].filter((s) => first[s] && first[s].top_ids).map((s) =>
    el("pre", {}, `${s.toUpperCase()}: token ${first[s].token}, margin ${first[s].margin_logits} (${first[s].margin_ulps} ulps)\n` +
      first[s].top_ids.map((id, i) => `${id}: ${(first[s].top_values || first[s].top_bits || [])[i]}`).join("  ")));
  const texts = (first.excerpts || []).map((text, i) => el("pre", {}, `${"AB"[i]}: ${text}`));
  return el("div", {}, facts(rows), ...sides, ...texts);
}

function armsOf(cell) {
  const body = el("tbody", {});
  for (const [arm, grades] of Object.entries(cell.arms || {}))
    for (const [grade, told] of Object.entries(grades))
      body.append(el("tr", {}, ...[arm, grade, told.verdict, `${told.exact}/${told.total}`].map((v) => el("td", {}, v))));
  return body.childElementCount ? el("table", {}, el("thead", {}, el("tr", {}, ...["arm", "grade", "verdict", "equal"].map((h) => el("th", { scope: "col" }, h)))), body) : null;
}

function platformOf(cell) {
  const own = DATA.platforms.find((p) => p.digest === cell.platform);
  if (!own) return null;
  const body = el("tbody", {});
  for (const [name, value] of Object.entries(own.facts)) {
    const differs = own.differs_in.includes(name);
    body.append(el("tr", differs ? { class: "differs" } : {}, el("td", {}, differs ? `≠ ${name}` : name), el("td", { class: "mono" }, value)));
  }
  const words = `${own.differs_in.length} of ${Object.keys(own.facts).length} facts are not the same on all platforms shown (≠)`;
  return el("details", {}, el("summary", {}, words), el("table", {}, body));
}

const listed = (value) => (value && typeof value === "object" ? Object.entries(value).map(([k, v]) => [k, Array.isArray(v) ? v.join(" to ") : v]) : []);

function show(index, button) {
  const cell = DATA.cells[index], into = $("detail");
  document.querySelectorAll(".cell[aria-expanded=true]").forEach((b) => b.setAttribute("aria-expanded", "false"));
  if (button) button.setAttribute("aria-expanded", "true");
  const scope = `${cell.scope}, ${cell.units_tested} of ${cell.units_known} units`;
  into.replaceChildren(
    el("h2", { tabindex: "-1", id: "detail-title" }, el("span", { class: `word ${cell.state}` }, cell.state), ` ${cell.contract}, ${cell.claim}`),
    el("p", {}, cell.platform_label || "unknown platform"),
    el("p", {}, cell.reason),
    ...(cell.note ? [el("p", {}, cell.note)] : []),
    ...(cell.retractions || []).map((r) => el("p", {}, r.words)),
    ...(cell.without_retractions ? [el("p", {}, `with what was retracted it would be ${cell.without_retractions.verdict}: ${cell.without_retractions.reason}`)] : []),
    ...(cell.warnings || []).map((w) => el("p", { class: "dim" }, `warning: ${w}`)),
    el("div", { class: "grid" }, ...[
      section("Claim", facts([["grade", cell.attained_grade ? `${cell.attained_grade} (required: ${cell.required_grade})` : `required: ${cell.required_grade}`], ["scope", scope],
        ["records", cell.records], ["mismatches", cell.mismatches || null], ["bound per record", cell.bounds && cell.verdict === "PASS" ? percent(cell.bounds.record) : null],
        ["bound per process", cell.bounds && cell.verdict === "PASS" ? percent(cell.bounds.process) : null], ["accepted", cell.accepted_at], ["expires", cell.expires_at],
        ["layer", cell.layer], ["charge", cell.charge ? `${cell.charge.charge}: ${cell.charge.words}` : null],
        ["apart", cell.platforms_apart ? cell.platforms_apart.words || "platforms differ" : null], ["execution id", el("code", {}, cell.execution_id)], ["platform", el("code", {}, cell.platform)]])),
      section("Arms and grades", armsOf(cell)),
      section("Attempts over time, and who shares a root", overTime(cell)),
      section("First difference", difference(cell.first_difference)),
      section("Where it parted", tree(cell.culprit)),
      section("Margins", marginsOf(cell)),
      section("Power", cell.power ? facts(listed(cell.power)) : null),
      section("Envelope: outside it is untested", cell.envelope && Object.keys(cell.envelope).length ? facts(listed(cell.envelope)) : null),
      section("Platform", platformOf(cell)),
      section("Look again", ...cell.commands.map((c) => el("pre", {}, c))),
    ].filter(Boolean)));
  $("detail-title").focus();
}

const buttons = [...document.querySelectorAll(".cell")];
$("matrix").addEventListener("click", (event) => {
  const button = event.target.closest(".cell");
  if (button) show(Number(button.dataset.cell), button);
});
$("matrix").addEventListener("keydown", (event) => {
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  const move = moves[event.key], at = event.target.closest("td");
  if (!move || !at) return;
  let row = at.parentElement, column = at.cellIndex;
  for (let tries = 0; tries < 5000; tries++) {
    if (move[0]) row = move[0] > 0 ? row.nextElementSibling : row.previousElementSibling;
    else column += move[1];
    if (!row || !row.cells[column]) return;
    const next = !row.hidden && row.cells[column].querySelector(".cell");
    if (next) { event.preventDefault(); next.focus(); return; }
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const open = document.querySelector(".cell[aria-expanded=true]");
  if (open) open.focus();
});

function filter() {
  const words = $("words").value.toLowerCase(), state = $("state").value;
  let shown = 0;
  for (const row of $("matrix").tBodies[0].rows) {
    const fits = row.dataset.words.includes(words) && (!state || row.dataset.states.split(" ").includes(state));
    row.hidden = !fits;
    shown += fits;
  }
  $("shown").textContent = `${shown} rows`;
}
$("words").addEventListener("input", filter);
$("state").addEventListener("change", filter);
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("filter").hidden = false;
filter();
if (buttons.length && location.hash.startsWith("#cell-")) show(Number(location.hash.slice(6)), $(location.hash.slice(1)));
