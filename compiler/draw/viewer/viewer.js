// The page: its state, its controls, and all that it shows besides the lanes, from the time axis to the tables.

const byId = (id) => document.getElementById(id);
let panels = []; // the programs that are shown
let total = 1; // the length of the time axis, in units
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

const state = {
  panels,
  view: { from: 0, to: total },
  scroll: 0,
  layout: null,
  selected: null, // {panel, row}; row: an instruction, by its number in the program
  hovered: null, // {panel, row}
  explained: null, // the moment that is explained: {panel, k, from, to}
  show: {
    bubbles: true,
    path: false,
    messages: false,
    arrows: true,
    signs: true,
    memory: true,
    differences: false,
  },
  chosen: new Set(), // the names in `show` that the user has switched: other programs do not change them
};

const AXIS_HEIGHT = 24; // pixels
const OVERVIEW_HEIGHT = 34; // pixels
const ZOOM_STEP = 0.6; // a key or a button that zooms in leaves this part of the time in view

const figure = byId("figure");
const lanes = new Lanes(byId("lanes"));
const axis = byId("axis");
const overview = byId("overview");
let frameTimes = []; // milliseconds that each of the last frames took to draw
let drawn = 0; // frames so far
let asked = false; // a frame will be drawn soon
let overviewImage = null; // what paintOverview returned; null: it has to be painted again

/** Draw a frame soon. */
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    frame();
  });
}

/** Draw a frame now, and note how long that took. */
function frame() {
  const begin = performance.now();
  state.scroll = figure.scrollTop;
  if (panels.length) {
    lanes.draw(state);
    drawAxis();
    drawOverview();
  }
  drawn++;
  frameTimes.push(performance.now() - begin);
  if (frameTimes.length > 1000) frameTimes = frameTimes.slice(-500);
}

// --- sizes, axis and overview ---------------------------------------------------------------------------------------

/** Lay everything out for the size of the window. */
function resize() {
  // 330: about the height in pixels of what is above and below the drawing.
  const available = PAGE.embedded ? Math.max(200, 0.55 * innerHeight) : Math.max(260, Math.min(innerHeight - 330, 1200));
  state.layout = layOut(panels, state.show, available);
  figure.style.height = `${Math.max(90, Math.min(available, state.layout.height))}px`;
  const width = Math.max(figure.clientWidth, 200);
  const height = figure.clientHeight;
  byId("space").style.height = `${Math.max(state.layout.height, height)}px`;
  const canvas = byId("lanes");
  canvas.style.width = `${figure.clientWidth}px`;
  canvas.style.height = `${height}px`;
  lanes.resize(figure.clientWidth, height);
  const ratio = globalThis.devicePixelRatio || 1;
  for (const [strip, stripHeight] of [[axis, AXIS_HEIGHT], [overview, OVERVIEW_HEIGHT]]) {
    strip.width = Math.round(width * ratio);
    strip.height = Math.round(stripHeight * ratio);
    strip.style.width = `${width}px`;
    strip.style.height = `${stripHeight}px`;
  }
  overviewImage = null;
  redraw();
}

/** Draw the time axis. A range that is being dragged is shaded on the axis and in the lanes. */
function drawAxis() {
  const c = axis.getContext("2d");
  const ratio = globalThis.devicePixelRatio || 1;
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  const { colours } = lanes;
  c.fillStyle = colours.back;
  c.fillRect(0, 0, lanes.width, AXIS_HEIGHT);
  c.font = "11px system-ui, sans-serif";
  c.textBaseline = "middle";
  c.textAlign = "left";
  c.fillStyle = colours.dim;
  const unit = panels[0].unit;
  c.fillText(unit ? `time in ${unit}` : "time", 8, 12);
  const distance = markDistance(1 / lanes.pixelsPerUnit, 70);
  c.strokeStyle = colours.line;
  c.textAlign = "center";
  for (let k = Math.ceil(state.view.from / distance); k * distance <= state.view.to; k++) {
    const x = lanes.x(k * distance);
    if (x < MARGIN - 1) continue;
    c.beginPath();
    c.moveTo(x, AXIS_HEIGHT - 5);
    c.lineTo(x, AXIS_HEIGHT);
    c.stroke();
    c.fillText(number(Number((k * distance).toPrecision(12))), Math.max(x, MARGIN + 4), 10);
  }
  if (range) {
    const [x0, x1] = [range.from, range.to].sort((a, b) => a - b);
    c.fillStyle = `${colours.select}55`;
    c.fillRect(x0, 0, x1 - x0, AXIS_HEIGHT);
    lanes.context.fillStyle = `${colours.select}33`;
    lanes.context.fillRect(x0, 0, x1 - x0, lanes.height);
  }
}

/** Draw the whole time at once: the share of ranks that compute, and which part of the time is in view. */
function drawOverview() {
  const c = overview.getContext("2d");
  const ratio = globalThis.devicePixelRatio || 1;
  const { colours } = lanes;
  const wide = Math.max(1, Math.round(lanes.width - MARGIN));
  overviewImage ??= paintOverview(wide, ratio);
  c.setTransform(1, 0, 0, 1, 0, 0);
  c.drawImage(overviewImage, 0, 0);
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  const [x0, x1] = [state.view.from, state.view.to].map((t) => MARGIN + (Math.max(0, Math.min(t, total)) / total) * wide);
  c.fillStyle = `${colours.back}b0`;
  c.fillRect(MARGIN, 2, x0 - MARGIN, 30);
  c.fillRect(x1, 2, MARGIN + wide - x1, 30);
  c.strokeStyle = colours.accent;
  c.lineWidth = 2;
  c.strokeRect(x0 + 1, 2, Math.max(x1 - x0 - 2, 2), 30);
}

/** Return a canvas with the share of busy ranks of each program over the whole time. The part in view is not marked on it. */
function paintOverview(wide, ratio) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [overview.width, overview.height];
  const c = canvas.getContext("2d");
  const { colours } = lanes;
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.fillStyle = colours.back;
  c.fillRect(0, 0, lanes.width, OVERVIEW_HEIGHT);
  c.font = "10px system-ui, sans-serif";
  c.fillStyle = colours.dim;
  c.textBaseline = "middle";
  c.fillText("ranks busy", 8, OVERVIEW_HEIGHT / 2);
  const high = 28 / panels.length;
  panels.forEach((p, k) => {
    c.fillStyle = colours.lane;
    c.fillRect(MARGIN, 3 + k * high, wide, high - 1);
    c.fillStyle = colours.dim;
    busyShares(p, wide).forEach((share, x) => {
      c.fillRect(MARGIN + x, 3 + k * high + (high - 1) * (1 - share), 1, (high - 1) * share);
    });
  });
  return canvas;
}

/** Return, for each pixel of the time axis, the share of a program's ranks that compute. wide: the pixels of the whole axis. */
function busyShares(p, wide) {
  const shares = new Float32Array(wide);
  const pixelsPerTime = wide / (total * p.scale);
  for (const row of p.tasks.all) {
    const [left, right] = [p.start[row] * pixelsPerTime, Math.min(p.end[row] * pixelsPerTime, wide)];
    for (let x = Math.floor(left); x < right; x++) shares[x] += (Math.min(x + 1, right) - Math.max(x, left)) / p.ranks;
  }
  return shares;
}

// --- zoom and pan ---------------------------------------------------------------------------------------------------

let moving = null; // the view that an animation leads to; null: no animation runs

/** Show the times from `from` to `to`, in units. A range that is too short, too long or outside the time axis is adjusted. */
function setView(from, to, animated = false) {
  const least = total / 1e6;
  const size = Math.min(Math.max(to - from, least), total * 1.1);
  const middle = (from + to) / 2;
  from = Math.max(-0.05 * total, Math.min(middle - size / 2, 1.05 * total - size));
  const goal = { from, to: from + size };
  if (!animated || reducedMotion.matches) {
    moving = null;
    state.view = goal;
    redraw();
    return;
  }
  const [begin, old] = [performance.now(), state.view];
  moving = goal;
  const next = () => {
    if (moving !== goal) return;
    const share = Math.min(1, (performance.now() - begin) / 160);
    const ease = 1 - (1 - share) ** 3;
    state.view = { from: old.from + (goal.from - old.from) * ease, to: old.to + (goal.to - old.to) * ease };
    redraw();
    if (share < 1) requestAnimationFrame(next);
    else moving = null;
  };
  next();
}

/** Show `factor` times as much time. The time at pixel x keeps its place; x null: the time of zoomCentre does. */
function zoom(factor, x = null, animated = true) {
  const { from, to } = moving ?? state.view;
  const at = x === null ? zoomCentre(from, to) : lanes.timeAt(x);
  setView(at - (at - from) * factor, at + (to - at) * factor, animated);
}

/** Return the time that keys and buttons for zooming keep in place: the selected instruction if in view, else the middle. */
function zoomCentre(from, to) {
  if (state.selected) {
    const { panel: p, row } = state.selected;
    const middle = (p.start[row] + p.end[row]) / 2 / p.scale;
    if (middle >= from && middle <= to) return middle;
  }
  return (from + to) / 2;
}

/** Move the view by a share of the time that it shows. */
function pan(share, animated = true) {
  const { from, to } = moving ?? state.view;
  setView(from + share * (to - from), to + share * (to - from), animated);
}

/** Show the whole time, with a little room at both ends. */
function fit(animated = true) {
  setView(-0.004 * total, 1.004 * total, animated);
}

/** Show a row with some of its neighbours. */
function zoomTo(p, row) {
  const mean = (p.makespan * p.ranks) / Math.max(p.tasks.all.length, 1);
  const length = Math.max(p.end[row] - p.start[row], mean) / p.scale;
  const middle = (p.start[row] + p.end[row]) / 2 / p.scale;
  setView(middle - 6 * length, middle + 6 * length, true);
}

/** Move the view, and scroll, if a row or its rank is not in view. The row then has some room beside it. */
function reveal(p, row) {
  const { from, to } = moving ?? state.view;
  const [start, end] = [p.start[row] / p.scale, p.end[row] / p.scale];
  const edge = 0.06 * (to - from);
  if (start < from) setView(start - 3 * edge, start - 3 * edge + to - from, true);
  else if (end > to) setView(end + 3 * edge - (to - from), end + 3 * edge, true);
  const { top, height } = state.layout.rows.find((r) => r.panel === p && r.rank === p.rankOf[row]);
  if (top < figure.scrollTop) figure.scrollTop = top - 8;
  else if (top + height > figure.scrollTop + figure.clientHeight) figure.scrollTop = top + height - figure.clientHeight + 8;
}

// --- selection ------------------------------------------------------------------------------------------------------

/** Select a row of a program; p null: select nothing. revealed: move the view so that the row is in it. */
function select(p, row, revealed = true) {
  state.selected = p ? { panel: p, row } : null;
  state.hovered = null;
  if (p && revealed) reveal(p, row);
  showDetails();
  byId("spoken").textContent = p ? spoken(p, row) : "Nothing is selected.";
  redraw();
}

/**
 * Return a new element. attributes: also listeners, such as `onclick`. children: elements and texts. A text becomes a text node, so
 * that no name is ever read as HTML.
 */
function element(tag, attributes = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) created.addEventListener(name.slice(2), value);
    else created.setAttribute(name, value);
  }
  created.append(...children);
  return created;
}

/** Show beside the drawing what is known about the selected instruction. */
function showDetails() {
  const box = byId("details");
  if (!state.selected) {
    box.replaceChildren(element("p", { class: "hint" }, "Click an instruction, or press an arrow key in the drawing."));
    return;
  }
  const { panel: p, row } = state.selected;
  const facts = [];
  const fact = (name, ...value) => facts.push(element("dt", {}, name), element("dd", {}, ...value));
  const links = (waits) => {
    const shown = waits.slice(0, 12).map((wait) =>
      element("li", {}, element("button", { class: "link", onclick: () => select(p, wait.row) }, wait.text)));
    if (waits.length > 12) shown.push(element("li", {}, `and ${waits.length - 12} more`));
    return element("ul", {}, ...shown);
  };
  if (panels.length > 1) fact("Schedule", titleOf(p));
  fact("Place", placeText(p, row));
  fact("Does", inWords(p, row));
  fact("Predicted", timesText(p, row));
  if (p.measured) fact("Measured", measuredText(p, row));
  const idle = idleBefore(p, row);
  if (idle) fact("Idle before", idle);
  const waits = waitSentences(p, row);
  fact("Waits for", waits.length ? links(waits) : "nothing on other ranks");
  const later = waitedForBy(p, row).map((wait) => ({ row: wait.row, text: nameOf(p, wait.row) }));
  if (later.length && p.forms[p.op[row]].op !== "ALLREDUCE") fact("Waited for by", links(later));
  const line = lineText(p, row);
  fact("Source", line ? element("code", {}, line) : `${placeText(p, row)} of the program`);
  fact("Memory", `${amount(p, p.memory.during[row])} while it runs, ${amount(p, p.memory.after[row])} after it`);
  if (p.pathPartOf.has(row)) fact("Critical path", `part ${p.pathPartOf.get(row) + 1} of ${p.path.row.length}`);
  const [low, high] = [p.offsets[p.rankOf[row]], p.offsets[p.rankOf[row] + 1]];
  const most = 9; // instructions of the stream, with the selected one in the middle where possible
  const first = Math.max(low, Math.min(row - 4, high - most));
  const stream = [];
  for (let k = first; k < Math.min(high, first + most); k++) {
    const attributes = { class: "link", onclick: () => select(p, k) };
    if (k === row) attributes["aria-current"] = "true";
    stream.push(element("li", {}, element("button", attributes, instructionText(p, k))));
  }
  box.replaceChildren(
    element("h3", { class: "instruction" }, instructionText(p, row)),
    element("dl", {}, ...facts),
    element("h4", {}, `Stream of rank ${p.rankOf[row]}`),
    element("ol", { class: "stream", start: String(first - low) }, ...stream),
  );
}

/** Select the next (by 1) or the previous (by -1) instruction of the stream, or task with tasksOnly. */
function neighbour(by, tasksOnly) {
  if (!state.selected) return selectFirst();
  const { panel: p, row } = state.selected;
  const rank = p.rankOf[row];
  let next = row + by;
  while (tasksOnly && next >= p.offsets[rank] && next < p.offsets[rank + 1] && !p.isTask[p.op[next]]) next += by;
  if (next >= p.offsets[rank] && next < p.offsets[rank + 1]) select(p, next);
}

/**
 * Select a task of the rank above (by -1) or below (by 1): the one that runs when the selected row starts, else the next one, else
 * the last one.
 */
function otherRank(by) {
  if (!state.selected) return selectFirst();
  const { panel: p, row } = state.selected;
  const own = state.layout.rows.findIndex((r) => r.panel === p && r.rank === p.rankOf[row]);
  const other = state.layout.rows[own + by];
  if (!other) return undefined;
  const when = (p.start[row] / p.scale) * other.panel.scale;
  const rows = other.panel.tasks.of(other.rank);
  if (!rows.length) return undefined;
  const k = firstIndex(0, rows.length, (i) => other.panel.end[rows[i]] > when);
  return select(other.panel, rows[Math.min(k, rows.length - 1)]);
}

/** Select the first task of rank 0 that starts in view or later; the last one if none does. Without tasks, select the first row. */
function selectFirst() {
  const p = panels[0];
  const from = state.view.from * p.scale;
  const rows = p.tasks.of(0);
  const k = firstIndex(0, rows.length, (i) => p.start[rows[i]] >= from);
  if (p.size) select(p, rows.length ? rows[Math.min(k, rows.length - 1)] : 0);
}

/** Select, of what the selected row waits for, what comes last; with `later`, of what waits for the row, what comes first. */
function follow(later) {
  if (!state.selected) return selectFirst();
  const { panel: p, row } = state.selected;
  const waits = later ? waitedForBy(p, row) : waitsFor(p, row);
  if (!waits.length) return say(later ? "Nothing waits for it." : "It waits for nothing.");
  const better = (a, b) => (later ? b.time < a.time : b.time > a.time);
  return select(p, waits.reduce((a, b) => (better(a, b) ? b : a)).row);
}

/** Announce a text to screen readers. */
function say(text) {
  byId("spoken").textContent = text;
}

/**
 * Select the next row that all words of the search field fit, or with `backwards` the one before. A word fits a task if it is the
 * label of the task. It fits any row if it begins a word of the text of the row, or of 'rank R'.
 */
function search(backwards) {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter((word) => word);
  if (!words.length || !panels.length) return;
  const p = state.selected?.panel ?? panels[0];
  const direction = backwards ? -1 : 1;
  // Without a selection the search begins at the first row, or backwards at the last one.
  const from = state.selected ? state.selected.row : backwards ? 0 : -1;
  const matches = (row) => {
    const name = p.isTask[p.op[row]] ? label(p, row).toLowerCase() : "";
    const text = ` ${instructionText(p, row)} rank ${p.rankOf[row]} `.toLowerCase();
    return words.every((word) => name === word || text.includes(` ${word}`));
  };
  for (let k = 1; k <= p.size; k++) {
    // After the last row comes the first one. A remainder of JavaScript can be negative.
    const row = (((from + direction * k) % p.size) + p.size) % p.size;
    if (matches(row)) {
      select(p, row);
      byId("found").textContent = nameOf(p, row);
      return;
    }
  }
  byId("found").textContent = "no instruction has these words";
}

// --- hover ----------------------------------------------------------------------------------------------------------

function hover(event) {
  const box = figure.getBoundingClientRect();
  const found = lanes.at(state, event.clientX - box.left, event.clientY - box.top);
  const tip = byId("tip");
  const before = state.hovered;
  state.hovered = found && found.row >= 0 ? { panel: found.panel, row: found.row } : null;
  if (before?.row !== state.hovered?.row || before?.panel !== state.hovered?.panel) redraw();
  const lines = found ? tipLines(found) : [];
  if (!lines.length) {
    tip.hidden = true;
    return;
  }
  tip.replaceChildren(...lines.map((line, k) => element(k ? "div" : "strong", {}, line)));
  tip.hidden = false;
  const [width, height] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
}

/** Return the lines of the tip about an instruction, or about an idle bar if `row` is -1; none if `bar` is -1 too. */
function tipLines({ panel: p, row, bar }) {
  if (row >= 0) {
    const lines = [instructionText(p, row), `${placeText(p, row)}: ${inWords(p, row)}`, `predicted: ${timesText(p, row)}`];
    if (p.measured) lines.push(`measured: ${measuredText(p, row)}`);
    const idle = idleBefore(p, row);
    if (idle) lines.push(`idle before: ${idle}`);
    const waits = waitSentences(p, row);
    lines.push(...waits.slice(0, 4).map((wait) => `waits for ${wait.text}`));
    if (waits.length > 4) lines.push(`and ${waits.length - 4} more`);
    const line = lineText(p, row);
    if (line) lines.push(line);
    return lines;
  }
  if (bar < 0) return [];
  const [letter, name, meaning] = causeOf(p, bar);
  const [start, end] = [p.idle.start[bar], p.idle.end[bar]];
  return [
    `${letter}: idle, ${name}`,
    `rank ${p.idle.rank[bar]}, ${time(p, start)} to ${withUnit(p, end)}, takes ${time(p, end - start)}`,
    meaning,
    reason(p, p.idle.rank[bar], bar, start),
  ];
}

// --- mouse, wheel and touch -----------------------------------------------------------------------------------------

let range = null; // {from, to}: pixels of the range that is being dragged, to which the view then zooms
const pointers = new Map(); // where each pressed pointer was last
let dragged = false; // a pointer has moved since it was pressed

figure.addEventListener("wheel", (event) => {
  const x = event.clientX - figure.getBoundingClientRect().left;
  if (x < MARGIN || event.altKey) return; // the browser scrolls through the ranks
  event.preventDefault();
  const scale = event.deltaMode === 1 ? 16 : 1; // pixels of a step: a line of text, or a pixel
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    pan(((event.deltaX || event.deltaY) * scale) / (lanes.width - MARGIN), false);
  } else zoom(Math.exp(Math.max(-240, Math.min(240, event.deltaY * scale)) * 0.002), x, false);
}, { passive: false });

figure.addEventListener("pointerdown", (event) => {
  if (event.button !== 0 || event.offsetX > figure.clientWidth) return; // beside the drawing is the scroll bar
  pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  dragged = false;
  const x = event.clientX - figure.getBoundingClientRect().left;
  range = event.shiftKey ? { from: x, to: x } : null; // an interrupted drag may have left a range
});

figure.addEventListener("pointermove", (event) => {
  const old = pointers.get(event.pointerId);
  if (!old) {
    if (event.pointerType !== "touch") hover(event);
    return;
  }
  const moved = { x: event.clientX, y: event.clientY };
  if (!dragged && Math.hypot(moved.x - old.x, moved.y - old.y) < 4) return;
  if (!dragged) figure.setPointerCapture(event.pointerId);
  dragged = true;
  byId("tip").hidden = true;
  const box = figure.getBoundingClientRect();
  if (range) {
    range.to = moved.x - box.left;
  } else if (pointers.size === 2) {
    const [a, b] = pointers.values();
    const other = a === old ? b : a;
    const [oldDistance, distance] = [Math.abs(old.x - other.x), Math.abs(moved.x - other.x)];
    if (oldDistance > 8 && distance > 8) zoom(oldDistance / distance, (moved.x + other.x) / 2 - box.left, false);
  } else {
    pan(-(moved.x - old.x) / (lanes.width - MARGIN), false);
    figure.scrollTop -= moved.y - old.y;
  }
  pointers.set(event.pointerId, moved);
  redraw();
});

function release(event) {
  if (!pointers.delete(event.pointerId)) return;
  if (range) {
    endRange();
  } else if (!dragged && event.type === "pointerup") {
    const box = figure.getBoundingClientRect();
    const found = lanes.at(state, event.clientX - box.left, event.clientY - box.top);
    if (found && found.row >= 0) select(found.panel, found.row, false);
    else if (state.selected) select(null);
  }
}

function endRange() {
  const [x0, x1] = [range.from, range.to].sort((a, b) => a - b);
  range = null;
  if (x1 - x0 > 5) setView(lanes.timeAt(Math.max(x0, MARGIN)), lanes.timeAt(x1), true);
  redraw();
}

figure.addEventListener("pointerup", release);
figure.addEventListener("pointercancel", release);
figure.addEventListener("pointerleave", () => {
  byId("tip").hidden = true;
  state.hovered = null;
  redraw();
});
figure.addEventListener("dblclick", (event) => {
  const box = figure.getBoundingClientRect();
  const found = lanes.at(state, event.clientX - box.left, event.clientY - box.top);
  if (found && found.row >= 0) zoomTo(found.panel, found.row);
  else fit();
});
figure.addEventListener("scroll", redraw);

axis.addEventListener("pointerdown", (event) => {
  axis.setPointerCapture(event.pointerId);
  range = { from: event.offsetX, to: event.offsetX };
});
axis.addEventListener("pointermove", (event) => {
  if (!range) return;
  range.to = event.offsetX;
  redraw();
});
axis.addEventListener("pointerup", () => range && endRange());

/** Move the middle of the view to the time at a point of the overview. */
function lookAt(event) {
  const at = ((event.offsetX - MARGIN) / (lanes.width - MARGIN)) * total;
  const size = state.view.to - state.view.from;
  setView(at - size / 2, at + size / 2);
}

overview.addEventListener("pointerdown", (event) => {
  overview.setPointerCapture(event.pointerId);
  lookAt(event);
});
overview.addEventListener("pointermove", (event) => event.buttons && lookAt(event));

// --- keyboard -------------------------------------------------------------------------------------------------------

function toggle(name) {
  state.show[name] = !state.show[name];
  state.chosen.add(name);
  showToggles();
  resize();
  say(`${name} ${state.show[name] ? "shown" : "hidden"}`);
}

const KEYS = {
  ArrowRight: () => neighbour(1, true),
  ArrowLeft: () => neighbour(-1, true),
  ".": () => neighbour(1, false),
  ",": () => neighbour(-1, false),
  ArrowUp: () => otherRank(-1),
  ArrowDown: () => otherRank(1),
  Home: () => edgeOfStream(true),
  End: () => edgeOfStream(false),
  Enter: () => state.selected && zoomTo(state.selected.panel, state.selected.row),
  w: () => follow(false),
  x: () => follow(true),
  "+": () => zoom(ZOOM_STEP),
  "=": () => zoom(ZOOM_STEP),
  "-": () => zoom(1 / ZOOM_STEP),
  0: () => fit(),
  "[": () => pan(-0.25),
  "]": () => pan(0.25),
  PageUp: () => (figure.scrollTop -= figure.clientHeight * 0.8),
  PageDown: () => (figure.scrollTop += figure.clientHeight * 0.8),
  b: () => toggle("bubbles"),
  c: () => toggle("path"),
  m: () => toggle("messages"),
  a: () => toggle("arrows"),
  i: () => toggle("signs"),
  h: () => toggle("memory"),
  d: () => panels.some((p) => p.measured) && toggle("differences"),
  e: () => explain(!state.explained),
  n: () => moment(1),
  p: () => moment(-1),
  " ": () => state.explained && play(),
  t: () => switchTheme(),
  "/": () => byId("find").focus(),
  "?": () => showHelp(),
  Escape: () => (state.explained ? explain(false) : select(null)),
};

function edgeOfStream(first) {
  if (!state.selected) return selectFirst();
  const { panel: p, row } = state.selected;
  const rank = p.rankOf[row];
  return select(p, first ? p.offsets[rank] : p.offsets[rank + 1] - 1);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const tag = event.target.tagName;
  if (tag === "INPUT" || tag === "SELECT" || tag === "TEXTAREA") {
    if (event.key === "Escape") figure.focus();
    return;
  }
  // Enter and Space belong to a button or link that has the focus. The other keys belong to the drawing.
  if ((tag === "BUTTON" || tag === "A") && (event.key === "Enter" || event.key === " ")) return;
  if (!panels.length && event.key !== "?" && event.key !== "t") return;
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

// --- theme, help, toolbar -------------------------------------------------------------------------------------------

let theme = null; // 'dark' or 'light', as the user or the page around this one chose; null: as the system has it

function isDark() {
  return theme === null ? systemIsDark.matches : theme === "dark";
}

function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  patterns.clear();
  lanes.retheme();
  overviewImage = null;
  byId("theme").setAttribute("aria-pressed", String(isDark()));
  showLegend();
  redraw();
}

function switchTheme() {
  if (PAGE.embedded) {
    document.dispatchEvent(new Event("switchtheme")); // the page around it decides, and calls setTheme
    return;
  }
  setTheme(isDark() ? "light" : "dark");
  say(`${theme} colours`);
}

/** Use the dark or the light colours: 'dark', 'light', or null for those of the system. */
function setTheme(name) {
  theme = name;
  applyTheme();
}

systemIsDark.addEventListener("change", applyTheme);

function showHelp() {
  byId("help").showModal();
}

function showToggles() {
  for (const button of document.querySelectorAll("[data-show]")) {
    button.setAttribute("aria-pressed", String(state.show[button.dataset.show]));
  }
}

for (const button of document.querySelectorAll("[data-show]")) {
  button.addEventListener("click", () => toggle(button.dataset.show));
}
const CLICKS = {
  "zoom-in": () => zoom(ZOOM_STEP),
  "zoom-out": () => zoom(1 / ZOOM_STEP),
  fit: () => fit(),
  theme: switchTheme,
  "open-help": showHelp,
  "close-help": () => byId("help").close(),
  explain: () => explain(!state.explained),
  "next-moment": () => moment(1),
  "previous-moment": () => moment(-1),
  play: () => play(),
  "end-explanation": () => explain(false),
  copy: () => copyCommand(),
  "find-next": () => search(false),
};
for (const [id, action] of Object.entries(CLICKS)) byId(id).addEventListener("click", action);
byId("find").addEventListener("keydown", (event) => event.key === "Enter" && search(event.shiftKey));

/** Show what the shades, lines and letters of the drawing mean. */
function showLegend() {
  const box = byId("legend");
  box.replaceChildren();
  if (!panels.length) return;
  const swatch = (paint, text) => {
    const canvas = element("canvas", { width: "44", height: "32", "aria-hidden": "true" });
    const c = canvas.getContext("2d");
    c.scale(2, 2);
    paint(c);
    box.append(element("span", { class: "key" }, canvas, text));
  };
  const letters = (c, text, colour) => {
    c.font = "600 11px ui-monospace, monospace";
    c.fillStyle = colour;
    c.textAlign = "center";
    c.textBaseline = "middle";
    c.fillText(text, 11, 8.5);
  };
  const forms = panels[0].forms;
  forms.forEach((form, op) => {
    if (!form.letter || !panels.some((p) => p.op.includes(op))) return;
    swatch((c) => {
      c.fillStyle = SHADES[0][op];
      c.fillRect(0, 0, 22, 16);
      letters(c, form.letter, TEXTS[op]);
    }, WORDS[form.letter]);
  });
  if (panels.some((p) => p.pipes.length > 1)) {
    const p = panels.reduce((a, b) => (b.pipes.length > a.pipes.length ? b : a)); // the pipes of the program with most of them
    p.pipes.slice(0, 8).forEach((pipe, k) => {
      swatch((c) => {
        c.fillStyle = SHADES[k % SHADES.length][0];
        c.fillRect(0, 0, 22, 16);
        const kind = PIPE_PATTERNS[k % PIPE_PATTERNS.length];
        c.fillStyle = kind === "none" ? SHADES[k % SHADES.length][0] : pattern(c, kind, LINES[0]);
        c.fillRect(0, 0, 22, 16);
      }, `pipe ${pipe.name}: ${idsText(pipe.microBatches) || "no micro-batches"}`);
    });
    if (p.pipes.length > 8) box.append(element("span", { class: "key" }, `and ${p.pipes.length - 8} more pipes`));
  }
  const used = new Set(panels.flatMap((p) => [...new Set(p.idle.cause)].map((cause) => p.causes[cause])));
  for (const cause of panels[0].causes.filter((name) => used.has(name))) {
    swatch((c) => {
      c.fillStyle = lanes.colours[`idle-${cause.replace("_", "-")}`];
      c.fillRect(0, 0, 22, 16);
      c.fillStyle = pattern(c, CAUSE_PATTERNS[cause], `${lanes.colours.dim}66`);
      c.fillRect(0, 0, 22, 16);
      letters(c, CAUSES[cause][0], lanes.colours.text);
    }, `idle: ${CAUSES[cause][1]}`);
  }
  swatch((c) => {
    c.fillStyle = lanes.colours.path;
    c.fillRect(0, 11, 22, 5);
  }, "critical path");
}

// --- the explanation ------------------------------------------------------------------------------------------------

let moments = []; // the times of momentsOf; moment k is from the k-th to the next one
let playing = null; // the timer that goes to the next moment

/** Begin (`on`) or end the explanation of what a bubble is. */
function explain(on) {
  if (on && !panels.length) return;
  endExplanation();
  if (!on) {
    figure.focus();
    redraw();
    return;
  }
  byId("explanation").hidden = false;
  byId("details").hidden = true;
  byId("explain").setAttribute("aria-pressed", "true");
  const p = state.selected?.panel ?? panels[0];
  state.selected = null;
  moments = momentsOf(p);
  state.explained = { panel: p, k: 0 };
  byId("of").textContent = titleOf(p);
  byId("moments").max = String(Math.max(0, moments.length - 2));
  showMoment(0);
  byId("next-moment").focus();
}

function endExplanation() {
  stop();
  state.explained = null;
  byId("explanation").hidden = true;
  byId("details").hidden = false;
  byId("explain").setAttribute("aria-pressed", "false");
}

/** Show moment k of the explanation, or the nearest one that there is. */
function showMoment(k) {
  const p = state.explained.panel;
  if (moments.length < 2) return;
  k = Math.max(0, Math.min(k, moments.length - 2));
  state.explained = { panel: p, k, from: moments[k], to: moments[k + 1] };
  const { head, idle, sentences, more, counts } = describeMoment(p, moments, k);
  byId("moments").value = String(k);
  byId("moment").textContent = `Moment ${k + 1} of ${moments.length - 1}. ${head}`;
  const items = sentences.map(({ rank, text }) => element("li", { class: idle.has(rank) ? "idle" : "" }, text));
  if (more) items.push(element("li", {}, `The other ${more} ranks are not listed. Idle ranks are listed first.`));
  byId("sentences").replaceChildren(...items);
  const cells = counts.slice(0, 64).map((count, rank) => element("li", {}, `rank ${rank}: ${count}`));
  byId("counts").replaceChildren(...cells);
  const last = k === moments.length - 2;
  byId("sum").textContent = last ? summary(p) : "";
  byId("previous-moment").disabled = k === 0;
  byId("next-moment").disabled = last;
  if (last) stop();
  const aboutIdle = sentences.filter(({ rank }) => idle.has(rank)).map(({ text }) => text);
  say([`Moment ${k + 1}. ${head}`, ...aboutIdle.slice(0, 4), last ? summary(p) : ""].join(" "));
  const { from, to } = state.view;
  const [start, end] = [moments[k] / p.scale, moments[k + 1] / p.scale];
  if (end > to || start < from) setView(start - 0.3 * (to - from), start + 0.7 * (to - from), true);
  redraw();
}

/** Go to a later or an earlier moment. */
function moment(by) {
  if (state.explained) showMoment(state.explained.k + by);
}

function play() {
  if (playing) return stop();
  if (state.explained.k >= moments.length - 2) showMoment(0);
  playing = setInterval(() => moment(1), 1300);
  byId("play").textContent = "Pause";
  return undefined;
}

function stop() {
  clearInterval(playing);
  playing = null;
  byId("play").textContent = "Play";
}

byId("moments").addEventListener("input", (event) => {
  stop();
  showMoment(Number(event.target.value));
});

// --- the command line -----------------------------------------------------------------------------------------------

/** Return a word of a command line, quoted if a POSIX shell would read it as anything else. */
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** Return the command line, with -p for each field that has a value. */
function commandLine() {
  const given = [...document.querySelectorAll("#parameters input")].flatMap((input) =>
    input.value === "" ? [] : ["-p", `${input.dataset.name}=${input.value}`]);
  return [...PAGE.command, ...given].map(quoted).join(" ");
}

function showCommand() {
  byId("command").textContent = commandLine();
}

async function copyCommand() {
  const text = commandLine();
  try {
    await navigator.clipboard.writeText(text);
    byId("copied").textContent = "copied";
  } catch {
    const selection = getSelection();
    selection.selectAllChildren(byId("command"));
    byId("copied").textContent = "selected: copy it with the keyboard";
  }
}

function showParameters() {
  const box = byId("parameters");
  for (const [name, value] of Object.entries(PAGE.parameters ?? {})) {
    const input = element("input", { type: "number", step: "1", value: String(value), id: `p-${name}`, "data-name": name });
    input.addEventListener("input", () => {
      showCommand();
      byId("copied").textContent = "run it in a terminal, then reload";
    });
    box.append(element("label", { for: `p-${name}` }, `${name} `, input));
  }
}

// --- tables ---------------------------------------------------------------------------------------------------------

/**
 * Show below the drawing why programs cannot run, and which are drawn only in part. The numbers of all others are tables, which
 * screen readers can read cell by cell.
 */
function showTables() {
  const box = byId("tables");
  box.replaceChildren();
  for (const panel of PAGE.panels.filter((x) => x.reason)) {
    box.append(element("p", { class: "reason" }, `${panel.name} cannot run at this size: ${panel.reason}`));
  }
  for (const p of panels.filter((x) => x.until !== null)) {
    const text = `only the instructions that start before ${withUnit(p, p.until)} are drawn; the makespan is ${withUnit(p, p.makespan)}`;
    box.append(element("p", { class: "reason" }, `${titleOf(p)}: ${text}.`));
  }
  for (const p of panels.filter((x) => x.until === null)) {
    const sums = Array.from({ length: p.ranks }, () => p.causes.map(() => 0)); // idle time by rank and cause
    for (let bar = 0; bar < p.idle.rank.length; bar++) sums[p.idle.rank[bar]][p.idle.cause[bar]] += p.idle.end[bar] - p.idle.start[bar];
    const facts = [
      `${p.ranks} ranks, ${p.stages} stages, ${p.microBatches} micro-batches, ${p.size} instructions`,
      `makespan ${withUnit(p, p.makespan)}`,
      `bubble ratio ${bubbleText(p)}`,
      `costs ${p.costs}`,
      `machine ${p.machine}`,
    ];
    if (p.measured) {
      const m = p.measured;
      const unit = m.unit ? ` ${m.unit}` : "";
      facts.push(`measured makespan ${number(m.makespan / m.factor / m.scale)}${unit}`);
      facts.push(`predicted ${number(p.makespan / m.factor / m.scale)}${unit}`);
      if (m.unitOfCost !== null) {
        facts.push(`a unit of the predicted times is taken as ${number(m.unitOfCost)}${unit}: all tasks together then take the measured time`);
      }
    }
    const heads = ["rank", "busy", ...p.causes.map((cause) => `${CAUSES[cause][0]}: ${CAUSES[cause][1]}`), "most memory"];
    const rows = sums.slice(0, 1024).map((idle, rank) => {
      const busy = p.makespan - idle.reduce((a, b) => a + b, 0);
      let most = 0;
      for (let row = p.offsets[rank]; row < p.offsets[rank + 1]; row++) most = Math.max(most, p.memory.during[row]);
      return [String(rank), time(p, busy), ...idle.map((value) => time(p, value)), amount(p, most)];
    });
    box.append(
      element("h2", {}, titleOf(p)),
      element("p", {}, facts.join("; ")),
      element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `Idle time of ${titleOf(p)}` },
        element("table", {},
          element("caption", {}, `Where the time of each rank goes${p.unit ? `, in ${p.unit}` : ""}`),
          element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
          element("tbody", {}, ...rows.map((cells) =>
            element("tr", {}, ...cells.map((cell, k) => element(k ? "td" : "th", k ? {} : { scope: "row" }, cell))))))),
    );
  }
}

/** Return the idle share of the time of all ranks, as a percentage. */
function bubbleText(p) {
  let idle = 0;
  for (let bar = 0; bar < p.idle.rank.length; bar++) idle += p.idle.end[bar] - p.idle.start[bar];
  return `${p.makespan ? ((100 * idle) / (p.ranks * p.makespan)).toFixed(1) : 0} %`;
}

// --- start ----------------------------------------------------------------------------------------------------------

/** Show programs. rawPanels: those that `page` of page.py is given, as JSON has them. */
function open(rawPanels) {
  PAGE.panels = rawPanels;
  panels = rawPanels.filter((panel) => !panel.reason).map(readPanel);
  total = Math.max(...panels.map((p) => p.total), 0) || 1;
  Object.assign(state, { panels, selected: null, hovered: null });
  endExplanation();
  byId("tip").hidden = true;
  // Whether these parts are shown depends on the programs, until the user has switched them.
  const automatic = {
    signs: panels.every((p) => p.size < 20000 && p.ranks <= 32),
    memory: !PAGE.embedded && panels.every((p) => p.ranks <= 16),
    differences: panels.some((p) => p.measured),
  };
  for (const [name, on] of Object.entries(automatic)) if (!state.chosen.has(name)) state.show[name] = on;
  const title = panels.map(titleOf).join(" and ") || "no schedule can run at this size";
  document.title = `${title} - chimerac`;
  byId("title").textContent = title;
  byId("summary").textContent = panels
    .map((p) => `${panels.length > 1 ? `${p.name}: ` : ""}makespan ${withUnit(p, p.makespan)}, bubble ratio ${bubbleText(p)}`)
    .join("; ");
  const sizes = panels.map((p) => `${p.ranks} ranks, ${p.tasks.all.length} tasks, makespan ${withUnit(p, p.makespan)}`);
  figure.setAttribute("aria-label", `Timeline of ${[title, ...sizes].join("; ")}`);
  const measured = panels.some((p) => p.measured);
  for (const button of document.querySelectorAll('[data-show="differences"]')) button.hidden = !measured;
  showToggles();
  showTables();
  showDetails();
  lanes.retheme();
  showLegend();
  resize();
}

/**
 * Show other programs in the place of the present ones. The selected instruction stays selected if its rank has it in the new
 * program. If a part of the time was in view, that part stays in view.
 */
function replace(rawPanels) {
  const { view, selected } = state;
  const [oldTotal, wanted] = [total, selected && instructionOf(selected)];
  open(rawPanels);
  const zoomed = view.to - view.from < 0.99 * oldTotal;
  if (zoomed) setView(view.from, view.to);
  else fit(false);
  const p = wanted && panels[wanted.panel];
  const row = p && wanted.rank < p.ranks ? rowOf(p, wanted) : -1;
  if (row >= 0) {
    state.selected = { panel: p, row };
    showDetails();
  }
}

/** Return what identifies an instruction in another program: {panel, rank, at, text}, `at` its number in its stream. */
function instructionOf({ panel: p, row }) {
  return { panel: p.number, rank: p.rankOf[row], at: row - p.offsets[p.rankOf[row]], text: instructionText(p, row) };
}

/** Return the row with a given text in the stream of a rank, the one at index `at` if it has this text; -1 if there is none. */
function rowOf(p, { rank, at, text }) {
  const [low, high] = [p.offsets[rank], p.offsets[rank + 1]];
  if (low + at < high && instructionText(p, low + at) === text) return low + at;
  for (let row = low; row < high; row++) if (instructionText(p, row) === text) return row;
  return -1;
}

if (PAGE.embedded) {
  document.documentElement.dataset.embedded = "true";
  byId("explain").after(byId("open-help")); // the header is hidden
}
showParameters();
showCommand();
applyTheme();
open(PAGE.panels);
new ResizeObserver(() => figure.clientWidth !== lanes.width && resize()).observe(figure);
addEventListener("resize", resize);
fit(false);
frame();

// For scripts that drive the page: the playground, tests and tools/bench_viewer.py.
globalThis.viewer = {
  state,
  lanes,
  setView,
  setTheme,
  select,
  replace,
  frame,
  instructionText,
  spoken,
  explained: () => (state.explained ? { ...state.explained, panel: state.explained.panel.number } : null),
  frameTimes: () => frameTimes,
  frames: () => drawn,
};
document.documentElement.dataset.ready = "true";
