"use strict";
/* What a cell opens. Everything that comes from evidence is put in as text, never as markup. */
const SVG = "http://www.w3.org/2000/svg";
const MARKS = ["●", "▲", "■", "◆", "✚", "✖"];
const MOST_ROWS = 12;

function el(name, attrs, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attrs || {})) node.setAttribute(key, value);
  for (const child of children.flat(2)) {
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
function titled(node, text) {
  node.append(shape("title", {}, text));
  return node;
}
const slug = (word) => word.replaceAll(" ", "-");
const mark = (place) => (place < 0 ? "·" : MARKS[Math.min(place, MARKS.length - 1)]);
const percent = (share) => (share === null || share === undefined ? "not bounded" : `≤ ${(100 * share).toPrecision(3)} %`);
const brief = (digest) => (digest || "").replace("sha256:", "").slice(0, 12);
const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const minute = (at) => (at ? `${at.slice(0, 16).replace("T", " ")} UTC` : "unknown");
const when = (at) => el("span", { class: "short" }, at ? at.slice(0, 16).replace("T", " ") : "unknown");
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const more = (shown, all, word) => (all > shown ? el("p", { class: "dim" }, `${all - shown} more ${word}`) : null);

function facts(pairs) {
  const body = el("tbody", {});
  for (const [key, value] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    body.append(el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, value)));
  }
  return body.childElementCount ? el("table", {}, body) : null;
}
function grid(heads, rows, attrs) {
  if (!rows.length) return null;
  const head = el("tr", {}, heads.map((h) => el("th", { scope: "col" }, h)));
  return el("table", attrs || {}, el("thead", {}, head), el("tbody", {}, rows));
}
const line = (values) => el("tr", {}, values.map((v) => el("td", {}, v)));
function section(title, ...content) {
  const kept = content.flat().filter((each) => each);
  return kept.length ? el("section", {}, el("h3", {}, title), kept) : null;
}

function attemptsOf(cell) {
  return cell.history.flatMap((h) => h.attempts.map((a) => ({ ...a, campaign: h.campaign, at_s: a.accepted_at_s ?? h.at_s })));
}

/* A band of verdicts, as each campaign left them, over a line for each unit with a mark for each root. */
function overTime(cell) {
  const told = cell.history.filter((h) => h.at_s !== null);
  if (!told.length) return null;
  const roots = cell.classes.map((c) => c.root);
  const attempts = attemptsOf(cell).filter((a) => a.at_s !== null);
  const units = [...new Set(attempts.map((a) => a.unit))].sort();
  const rows = units.slice(0, MOST_ROWS);
  const width = 430, left = 6, right = width - 6, band = 24, step = 26, height = band + 12 + step * rows.length + 24;
  const times = [...told.map((h) => h.at_s), ...attempts.map((a) => a.at_s)];
  const first = Math.min(...times), last = Math.max(...times), span = Math.max(last - first, 1);
  const x = (at) => left + 6 + ((at - first) / span) * (right - left - 60);
  const svg = picture(width, height, `verdicts after ${plural(told.length, "campaign")}, newest ${told[told.length - 1].after || "none"}`);
  told.forEach((h, i) => {
    const state = h.events.includes("REGRESSED") ? "REGRESSED" : h.after || "UNTESTED";
    const end = i + 1 < told.length ? x(told[i + 1].at_s) : right;
    svg.append(titled(shape("rect", { x: x(h.at_s), y: 2, width: Math.max(end - x(h.at_s) - 1, 2), height: band - 4, class: `state ${slug(state)}` }), `${minute(h.at)}: ${state}; ${h.campaign}`));
    if (end - x(h.at_s) > 8 * state.length + 6) svg.append(shape("text", { x: x(h.at_s) + 5, y: 16, class: `state ${slug(state)}` }, state));
  });
  rows.forEach((unit, row) => {
    const y = band + 12 + step * row;
    svg.append(shape("text", { x: left, y: y + 6 }, short(unit || "unit unknown", 64)));
    svg.append(shape("line", { x1: left, x2: right, y1: y + 15, y2: y + 15, class: "axis" }));
  });
  for (const a of attempts) {
    const row = rows.indexOf(a.unit);
    if (row < 0) continue;
    const sign = a.state !== "COMPLETE" || a.retracted ? "×" : mark(roots.indexOf(a.root));
    const node = shape("text", { x: x(a.at_s), y: band + 12 + step * row + 20, class: "mark", "text-anchor": "middle" }, sign);
    svg.append(titled(node, `${a.attempt} ${a.state} ${a.cause ? a.cause.code : brief(a.root)}`));
  }
  svg.append(shape("text", { x: left, y: height - 4 }, minute(told[0].at)));
  svg.append(shape("text", { x: right, y: height - 4, "text-anchor": "end" }, minute(told[told.length - 1].at)));
  return el("div", {}, svg, more(rows.length, units.length, "units"));
}
function campaigns(cell) {
  const rows = [...cell.history].reverse().map((h) => {
    const state = h.events.includes("REGRESSED") ? "REGRESSED" : h.after || "UNTESTED";
    return line([when(h.at), el("span", { class: `word ${slug(state)}` }, state), [el("div", {}, h.events.join("; ") || h.own), el("div", { class: "dim" }, h.campaign)]]);
  });
  const told = grid(["time, UTC", "verdict", "what the campaign changed"], rows.slice(0, 5));
  const rest = rows.length > 5 ? el("details", {}, el("summary", {}, `${rows.length - 5} campaigns before`), grid(["time, UTC", "verdict", "what the campaign changed"], rows.slice(5))) : null;
  return [told, rest, more(cell.history.length, cell.campaigns, "campaigns, older")];
}
function attemptList(cell) {
  const rows = attemptsOf(cell).reverse().map((a) => line([el("code", {}, a.attempt), a.purpose, a.retracted ? "retracted" : a.state, a.cause ? `${a.cause.code}: ${a.cause.text}` : el("code", {}, brief(a.root)), a.unit]));
  const all = cell.history.reduce((sum, h) => sum + h.num_attempts, 0);
  if (!rows.length) return null;
  const table = () => grid(["attempt", "purpose", "state", "root or cause", "unit"], rows);
  return lazily(`${plural(all, "attempt")}${all > rows.length ? `, the newest ${rows.length}` : ""}`, table);
}
/* Content that is made when it is first opened. */
function lazily(words, make) {
  const node = el("details", {}, el("summary", {}, words));
  node.addEventListener("toggle", () => { if (node.childElementCount === 1) node.append(make()); });
  return node;
}

/* Who shares a root: units down, roots across, replays in the cells. */
function classesOf(cell) {
  if (!cell.classes.length) return null;
  const roots = cell.classes.slice(0, MARKS.length);
  const units = [...new Set(roots.flatMap((c) => Object.keys(c.units)))].sort();
  const legend = grid(["", "root", "replays", "units", "seen, UTC"], cell.classes.slice(0, MOST_ROWS).map((c, i) =>
    line([mark(i), el("code", {}, brief(c.root)), c.replays, c.num_units, [when(c.first), c.first === c.last ? null : [" to ", when(c.last)]]])));
  const table = grid(["unit", ...roots.map((_, i) => mark(i))], units.slice(0, MOST_ROWS).map((unit) =>
    el("tr", {}, el("th", { scope: "row" }, unit), roots.map((c) => el("td", { class: "number" }, c.units[unit] || "–")))));
  const all = Math.max(units.length, ...cell.classes.map((c) => c.num_units));
  return [el("p", {}, cell.classes.length === 1 ? "One root: all replays that count agree." : `${cell.classes.length} roots.`), legend,
    cell.classes.length > 1 || units.length > 1 ? table : null, more(Math.min(units.length, MOST_ROWS), all, "units"), more(MOST_ROWS, cell.classes.length, "roots")];
}

function marginsOf(cell) {
  const found = cell.margins;
  if (!found) return null;
  if (found.unreadable) return el("p", {}, `not read: ${found.unreadable}`);
  if (!found.records) return null;
  const most = Math.max(...found.bins.map((b) => b.records), 1);
  const width = 430, height = 170, base = height - 36, each = (width - 20) / found.bins.length;
  const svg = picture(width, height, `how near each of ${found.records} records stands to another token, in ulps: ${found.exact_ties} exact ties`);
  found.bins.forEach((bin, i) => {
    const tall = (bin.records / most) * (base - 20), x = 10 + i * each;
    svg.append(titled(shape("rect", { x, y: base - tall, width: each - 3, height: tall, class: i < 2 ? "bar near" : "bar" }), `from ${bin.from} ulps: ${plural(bin.records, "record")}`));
    if (bin.records) svg.append(shape("text", { x: x + each / 2 - 1, y: base - 4 - tall, "text-anchor": "middle" }, bin.records));
    if (i < 4 || i % 3 === 0) svg.append(shape("text", { x: x + each / 2 - 1, y: base + 14, "text-anchor": "middle" }, bin.from));
  });
  svg.append(shape("line", { x1: 10, x2: width - 10, y1: base, y2: base, class: "axis" }));
  svg.append(shape("text", { x: 10, y: height - 4 }, "ulps from the chosen token to the next, at the nearest step of each record"));
  const near = found.nearest.map((n) => `${n.sample} (${n.arm}): ${n.ulps} ulps`).join("; ");
  const of = found.of > found.records ? `the first ${found.records} of ${found.of} records` : plural(found.records, "record");
  return el("div", {}, svg, el("p", { class: "dim" }, `${of} of attempt ${found.attempt}; ${plural(found.exact_ties, "exact tie")}. Nearest: ${near}`));
}

/* The calls of one step, opened along the path to the culprit. */
const WORDS = { "SAME->SAME": "agrees", "SAME->DIFF": "candidate", "DIFF->DIFF": "carrier", "DIFF->SAME": "healed", UNKNOWN: "unknown", UNALIGNED: "unknown" };
const badge = (word) => (word ? el("span", { class: `flow ${WORDS[word] || "unknown"}` }, word.replace("->", " → ")) : el("span", { class: "flow unknown" }, "several"));
const counted = (words) => Object.entries(words).map(([word, n]) => `${n} ${word.replace("->", " → ")}`).join(", ");
const leaf = (path, above) => (path.startsWith(`${above}.`) ? path.slice(above.length + 1) : path) || "the model";
function branch(node, above, culprit) {
  const inside = Object.values(node.inside).reduce((sum, n) => sum + n, 0);
  const names = node.calls === 1 ? leaf(node.path, above) : `${leaf(node.path, above)} … ${leaf(node.last, above)}`;
  const is = node.on_path && !node.lines.some((each) => each.on_path);
  const words = [badge(node.word), " ", el("span", is ? { class: "culprit" } : {}, names), node.class_name ? ` (${node.class_name})` : "",
    node.calls > 1 ? `, ${node.calls} calls in a row` : "", is && culprit ? `: ${culprit.kind}` : ""];
  const below = inside && !node.lines.length ? el("span", { class: "dim" }, `; inside: ${counted(node.inside)}`) : null;
  if (!node.lines.length) return el("li", { class: node.on_path ? "path" : "beside" }, words, below);
  const list = el("ul", {}, node.lines.map((each) => branch(each, node.path, culprit)));
  return el("li", { class: "path" }, el("details", { open: "" }, el("summary", {}, words), list));
}
function treeOf(cell) {
  const tree = cell.tree, culprit = cell.culprit;
  const told = culprit ? facts([["module", culprit.path === null ? "none" : culprit.path || "the model"], ["class", culprit.class], ["kind", `${culprit.kind}: ${culprit.words}`],
    ["gap", culprit.gap ? `between ${culprit.gap.after} and ${culprit.gap.before}` : null], ["where", `arm ${culprit.arm}, sample ${culprit.sample_ids.join(", ")}, step ${culprit.step}`],
    ["input", culprit.dtype ? `${culprit.dtype} [${culprit.shape}]` : null], ["repeated", culprit.repeats ? `${culprit.unique} distinct outputs of ${culprit.repeats}` : null],
    ["bound", culprit.bound === null ? null : `a race ${percent(culprit.bound)} a call`], ["reaches the logits", culprit.survives_to_logits ? "yes" : "no"],
    ["inside it", culprit.zoom ? `${culprit.zoom.name} at ${culprit.zoom.where || "no line of Python"}` : null], ["seen in", `${culprit.source} replays`]]) : null;
  if (!tree) return told;
  const head = `Calls of arm ${tree.arm}, sample ${tree.sample_ids.join(", ")}, step ${tree.step}, over ${plural(tree.replays, "replay")}: what went in and what came out.`;
  const steps = grid(["steps", "calls"], tree.steps.map((s) => line([s.first === s.last ? s.first : `${s.first} to ${s.last}`, counted(s.words)])));
  return [told, el("p", { class: "dim" }, head), el("ul", { class: "tree" }, branch(tree.root, "", culprit)),
    tree.elsewhere ? el("p", { class: "dim" }, `${tree.elsewhere} calls that only other replays made`) : null, el("details", {}, el("summary", {}, "all steps of this batch"), steps)];
}

function difference(first) {
  if (!first) return null;
  const c = first.contested, tokens = first.tokens || [];
  const changes = { true: "their order changes", false: "their order stays" };
  const rows = [["sample", first.sample_id], ["arm", first.arm], ["position", first.position], ["what", first.words || first.stage],
    ["first other token", first.token_step === null || first.token_step === undefined ? null : `step ${first.token_step}`],
    ["tokens", tokens.length ? `A ${tokens[0]}, B ${tokens[1]}` : null], ["contested", c ? `step ${c.step}: token ${c.tokens[0]} against ${c.tokens[1]}; A ${c.order_a}, B ${c.order_b}; ${changes[c.changes_sign] || "whether their order changes is unknown"}` : null],
    ["attempts", (first.attempts || []).map((a, i) => `${"AB"[i]} ${a}`).join(", ")]];
  const sides = ["a", "b"].map((s) => first[s]).filter((s) => s && s.top_ids);
  const value = (side, i) => (side.top_ids[i] === undefined ? "" : `${side.top_ids[i]}: ${side.top_values ? side.top_values[i] : `0x${side.top_bits[i].toString(16)}`}`);
  const top = sides.length < 2 ? null : grid([`step ${first.step ?? first.token_step ?? ""}`, "A, token: logit", "B, token: logit"], [
    ...sides[0].top_ids.map((_, i) => el("tr", value(sides[0], i) === value(sides[1], i) ? {} : { class: "differs" }, el("th", { scope: "row" }, `top ${i + 1}`), el("td", { class: "mono" }, value(sides[0], i)), el("td", { class: "mono" }, value(sides[1], i)))),
    el("tr", {}, el("th", { scope: "row" }, "chosen"), sides.map((s) => el("td", {}, `${s.token}, margin ${s.margin_logits} (${s.margin_ulps} ulps)`)))]);
  const texts = (first.excerpts || []).map((text, i) => el("pre", {}, `${"AB"[i]}: ${text}`));
  return [facts(rows), top, texts];
}

function armsOf(cell) {
  const rows = Object.entries(cell.arms || {}).flatMap(([arm, grades]) => Object.entries(grades).map(([grade, told]) =>
    line([arm, grade, el("span", { class: `word ${told.verdict}` }, told.verdict), `${told.exact}/${told.total}`, told.both_unparsed ? `${told.both_unparsed} both unparsed` : ""])));
  return grid(["arm", "grade", "verdict", "equal", ""], rows);
}

/* Facts of the cell's platform beside another one's; the platform before it stands first. */
function platformOf(cell) {
  const all = [...DATA.platforms, ...DATA.predecessors];
  const own = all.find((p) => p.digest === cell.platform);
  if (!own || !Object.keys(own.facts).length) return null;
  const apart = cell.platforms_apart ? cell.platforms_apart.there : [];
  const rank = (p) => (cell.predecessors.includes(p.digest) ? 0 : apart.includes(p.digest) ? 1 : 2);
  const others = all.filter((p) => p !== own && Object.keys(p.facts).length).sort((a, b) => rank(a) - rank(b));
  const named = ["before this one: ", "other bits: ", ""];
  const choose = el("select", { id: "other" }, others.map((p, i) => el("option", { value: i }, `${named[rank(p)]}${p.label}`)));
  const into = el("div", { id: "facts", role: "status" });
  function compare() {
    const other = others[Number(choose.value)];
    const names = [...new Set([...Object.keys(own.facts), ...Object.keys(other.facts)])].sort().filter((n) => own.facts[n] !== other.facts[n]);
    const rows = names.map((n) => el("tr", {}, el("th", { scope: "row" }, n), [own, other].map((p) => el("td", { class: "mono" }, p.facts[n] ?? "absent"))));
    into.replaceChildren(names.length ? grid(["fact", "here", "there"], rows) : el("p", {}, "no fact differs"));
  }
  choose.addEventListener("change", compare);
  if (others.length) compare();
  const whole = lazily(`all ${Object.keys(own.facts).length} facts`, () => facts(Object.entries(own.facts).map(([name, value]) => [name, el("span", { class: "mono" }, value)])));
  return [others.length ? el("label", {}, "Compare with", choose) : null, into, whole];
}

const listed = (value) => (value && typeof value === "object" ? Object.entries(value).map(([k, v]) => [k.replaceAll("_", " "), Array.isArray(v) ? v.join(k === "prompt_tokens" ? " to " : ", ") : v]) : []);

function claimOf(cell) {
  const passes = cell.bounds && cell.verdict === "PASS";
  return facts([["required", cell.required_grade], ["attained", cell.attained_grade], ["scope", cell.scope ? `${cell.scope}, ${cell.units_tested} of ${Math.max(cell.units_known, cell.units_tested)} units` : null],
    ["records", cell.records], ["mismatches", cell.mismatches || null], ["bound per record", passes ? percent(cell.bounds.record) : null], ["bound per process", passes ? percent(cell.bounds.process) : null],
    ["accepted", cell.accepted_at ? minute(cell.accepted_at) : null], ["expires", cell.expires_at ? minute(cell.expires_at) : null],
    ["regressed", cell.last_regression ? `since ${minute(cell.last_regression.since)}, ${cell.last_regression.campaign}` : null], ["predecessor", cell.predecessor ? `${cell.predecessor.state} on ${cell.predecessor.platform_label}` : null],
    ["layer", cell.layer], ["charge", cell.charge ? `${cell.charge.charge}: ${cell.charge.words}` : null], ["execution id", el("span", { class: "mono" }, cell.execution_id || "")], ["platform", el("span", { class: "mono" }, cell.platform || "not stated")]]);
}

/* All of a cell, to be put below the matrix. */
function detail(cell) {
  const retracted = [...(cell.retractions || []).map((r) => r.words), ...(cell.without_retractions ? [`with what was retracted it would be ${cell.without_retractions.verdict}: ${cell.without_retractions.reason}`] : [])];
  const tested = cell.verdict !== undefined;
  return [
    el("p", {}, cell.platform_label || "no platform stated", cell.traced ? ", traced" : ""),
    [cell.reason, cell.note].filter((words) => words).map((words) => el("p", { class: "reason" }, words)),
    retracted.map((words) => el("p", { class: "VOID note" }, words)),
    (cell.warnings || []).map((words) => el("p", { class: "dim" }, `warning: ${words}`)),
    el("div", { class: "grid" },
      section("Commands", Object.entries(cell.commands).map(([purpose, command]) => [el("span", { class: "dim" }, purpose), el("pre", { tabindex: "0" }, command)])),
      section("Claim", claimOf(cell)),
      tested ? section("Arms and grades", armsOf(cell)) : null,
      section("First difference", difference(cell.first_difference)),
      section("Where it parted", treeOf(cell)),
      section("Verdicts over time", overTime(cell), campaigns(cell), attemptList(cell)),
      section("Who shares a root", classesOf(cell)),
      section("Margins", marginsOf(cell)),
      tested ? section("Power", facts(listed(cell.power))) : null,
      tested ? section("Envelope: outside it is untested", facts(listed(cell.envelope))) : null,
      section("Platform", platformOf(cell))),
  ];
}
