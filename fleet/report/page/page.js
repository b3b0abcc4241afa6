/* The matrix: open a cell, move between cells, filter. A cell's data is read when it is opened. */
const LINES = document.getElementById("data").textContent.split("\n");
const DATA = JSON.parse(LINES[0]);
const cellAt = (index) => JSON.parse(LINES[index + 1]);
const $ = (id) => document.getElementById(id);
const rows = [...$("matrix").tBodies[0].rows];

function close() {
  const open = document.querySelector(".cell[aria-expanded=true]");
  if (!open) return;
  open.setAttribute("aria-expanded", "false");
  $("detail").replaceChildren();
  $("detail").hidden = true;
  history.replaceState(null, "", "#matrix");
  moveTo(open);
}

function show(button, index) {
  const cell = cellAt(index), own = button.dataset.cells.split(" ").map(Number);
  document.querySelectorAll(".cell[aria-expanded=true]").forEach((b) => b.setAttribute("aria-expanded", "false"));
  button.setAttribute("aria-expanded", "true");
  const title = el("h2", { tabindex: "-1", id: "detail-title" }, el("span", { class: `word ${slug(cell.word)}` }, cell.word), ` ${cell.contract}, ${cell.claim}`);
  const back = el("button", { type: "button", class: "plain" }, "Close (Esc)");
  back.addEventListener("click", close);
  const others = own.filter((each) => each !== index).map((each) => {
    const other = cellAt(each);
    const node = el("button", { type: "button", class: "plain" }, `Also here: ${other.word}, ${other.traced ? "traced" : "untraced"}`);
    node.addEventListener("click", () => show(button, each));
    return node;
  });
  $("detail").replaceChildren(el("div", { class: "bar-of-buttons" }, back, others), title, ...detail(cell).flat(2).filter((each) => each));
  $("detail").hidden = false;
  history.replaceState(null, "", `#cell-${index}`);
  title.focus();
}

/* One cell at a time is a stop of the Tab key; arrows move between cells. */
let current = null;
function rove(button) {
  if (current) current.tabIndex = -1;
  current = button;
  if (current) current.tabIndex = 0;
}
function moveTo(button) {
  rove(button);
  button.focus();
}
const FAR = 1e9;
const MOVES = { ArrowRight: [0, 1, 1], ArrowLeft: [0, -1, 1], ArrowDown: [1, 0, 1], ArrowUp: [-1, 0, 1], Home: [0, -1, FAR], End: [0, 1, FAR], PageDown: [1, 0, 10], PageUp: [-1, 0, 10] };
function next(at, [down, right, times]) {
  const shown = rows.filter((row) => !row.hidden);
  let row = shown.indexOf(at.parentElement), column = at.cellIndex, found = null;
  while (times > 0) {
    row += down;
    column += right;
    const cell = shown[row] && shown[row].cells[column];
    if (!cell) break;
    const button = cell.querySelector(".cell");
    if (!button) continue;
    found = button;
    times -= 1;
  }
  return found;
}
$("matrix").addEventListener("keydown", (event) => {
  const move = MOVES[event.key], at = event.target.closest("td");
  if (!move || !at) return;
  const button = next(at, move);
  event.preventDefault();
  if (button) moveTo(button);
});
$("matrix").addEventListener("click", (event) => {
  const button = event.target.closest(".cell");
  if (!button) return;
  rove(button);
  if (button.getAttribute("aria-expanded") === "true") close();
  else show(button, Number(button.dataset.cells.split(" ")[0]));
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });

function filter() {
  const words = $("words").value.toLowerCase(), state = $("state").value;
  let shown = 0;
  for (const row of rows) {
    row.hidden = !(row.dataset.words.includes(words) && (!state || row.dataset.states.split("|").includes(state)));
    shown += !row.hidden;
  }
  if (!current || current.closest("tr").hidden) rove(rows.filter((row) => !row.hidden).map((row) => row.querySelector(".cell")).find((b) => b) || null);
  $("shown").textContent = `${plural(shown, "row")} of ${rows.length}`;
}
document.querySelectorAll(".cell").forEach((button) => { button.tabIndex = -1; });
$("words").addEventListener("input", filter);
$("state").addEventListener("change", filter);
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("filter").hidden = false;
filter();
const asked = location.hash.startsWith("#cell-") ? location.hash.slice(6) : null;
const opened = asked && [...document.querySelectorAll(".cell")].find((b) => b.dataset.cells.split(" ").includes(asked));
if (opened) { rove(opened); show(opened, Number(asked)); }
