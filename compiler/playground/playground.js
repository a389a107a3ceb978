// The page: it sends the text when it changes, and shows the answer: a timeline, or findings in their places.

import { Editor, describe, span } from "./editor.js";
import { Timeline } from "./timeline.js";

const WAIT = 120; // milliseconds without a change, after which the text is sent
const part = (id) => document.getElementById(id);
// given: parameters by name; name, shipped: of the text that was opened, and that text; timer: of the next compilation; waiting:
// the text has changed while an answer is awaited; answer: the last one, null if it has findings.
const state = { given: {}, name: "", shipped: "", waiting: false, busy: false, timer: 0, answer: null };

const editor = new Editor({ text: part("text"), layer: part("layer"), gutter: part("gutter"), bubble: part("bubble") }, changed);
const timeline = new Timeline(part("timeline"), part("task"));

async function ask(kind, body) {
  const answer = await fetch(kind, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error);
  return data;
}

function changed() {
  keep();
  clearTimeout(state.timer);
  state.timer = setTimeout(compile, WAIT);
}

/** Send the text. While an answer is awaited, only the last change is remembered, and sent after it. */
async function compile() {
  if (state.busy) { state.waiting = true; return; }
  state.busy = true;
  const text = editor.value, begin = performance.now();
  const slow = setTimeout(() => say("compiling ...", false), 400);
  try {
    const answer = await ask("draw", { text, parameters: state.given });
    if (text === editor.value) receive(answer, performance.now() - begin);
  } catch (error) {
    const gone = error instanceof TypeError;
    say(gone ? "the server does not answer: has chimerac serve ended?" : error.message, true);
    part("right").classList.add("old");
  } finally {
    clearTimeout(slow);
    state.busy = false;
    if (state.waiting) { state.waiting = false; compile(); }
  }
}

function receive(answer, taken) {
  const findings = answer.findings ?? [];
  editor.show(findings);
  part("findings").replaceChildren(...findings.map(item));
  part("right").classList.toggle("old", findings.length > 0);
  part("download").disabled = findings.length > 0 && part("products").value !== "0";
  if (answer.parameters) showSliders(answer.parameters);
  if (findings.length) {
    const hidden = answer.count - findings.length;
    const errors = answer.count === 1 ? "1 error" : `${answer.count} errors`;
    say(`${errors}${hidden > 0 ? `, the first ${findings.length} are shown` : ""}`, true);
    state.answer = null;
  } else {
    state.answer = answer;
    const cut = answer.until === null ? "" : `; drawn up to time ${answer.untilText}`;
    say(`compiled and verified in ${Math.round(taken)} ms${cut}`, false);
    figures(answer);
    timeline.show(answer);
    legend(answer);
  }
  command();
  document.documentElement.dataset.answered = String(Number(document.documentElement.dataset.answered ?? 0) + 1);
}

function say(message, bad) {
  part("status").textContent = message;
  part("status").classList.toggle("bad", bad);
}

function item(found) {
  const row = document.createElement("li"), button = document.createElement("button");
  button.type = "button";
  if (found.place) button.append(span("where", `${found.place[0]}:${found.place[1]}  `));
  const body = describe(found, true);
  button.append(...body.childNodes);
  button.addEventListener("click", () => editor.goTo(found));
  row.append(button);
  return row;
}

/** Return '3', or '1 to 4' for different numbers. */
function spanText(numbers) {
  const sorted = [...numbers].sort((a, b) => Number(a) - Number(b)), least = sorted[0], greatest = sorted.at(-1);
  return least === greatest ? String(least) : `${least} to ${greatest}`;
}

function figures(answer) {
  const rows = [
    ["Makespan", `${answer.makespanText}${answer.unit ? ` ${answer.unit}` : ""}`],
    ["Bubble ratio", `${(answer.bubbleRatio * 100).toFixed(1)} %`],
    ["Idle per rank", spanText(answer.idle)],
    ["Activations at the peak", spanText(answer.activations)],
    ["Ranks", answer.ranks], ["Stages", answer.stages], ["Micro-batches", answer.microBatches],
    ["Instructions", answer.instructions.toLocaleString("en")],
  ];
  part("figures").replaceChildren(...rows.map(([name, value]) => {
    const box = document.createElement("div"), term = document.createElement("dt"), data = document.createElement("dd");
    term.textContent = name;
    data.textContent = value;
    box.append(term, data);
    return box;
  }));
}

function legend(answer) {
  const nodes = [];
  for (const pipe of timeline.legend()) {
    if (pipe.name) { const name = span("", ""); const strong = document.createElement("strong"); strong.textContent = pipe.name; name.append(strong); nodes.push(name); }
    for (const kind of pipe.kinds) {
      const entry = span("", "");
      entry.append(swatch(`M0 0h16v12H0z`, kind.shade), kind.word);
      nodes.push(entry);
    }
  }
  if (answer.allReduces.rank.length) { const entry = span("", ""); entry.append(swatch("M3 11h10l-5-9z", "currentColor"), "all-reduce of gradients"); nodes.push(entry); }
  nodes.push(span("", "numbers are micro-batches"));
  part("legend").replaceChildren(...nodes);
}

function swatch(path, fill) {
  const make = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
  const svg = make("svg"), shape = make("path");
  svg.setAttribute("viewBox", "0 0 16 12");
  svg.setAttribute("aria-hidden", "true");
  shape.setAttribute("d", path);
  shape.setAttribute("fill", fill);
  svg.append(shape);
  return svg;
}

/** Update the sliders in place, so that the one that is being moved stays under the pointer. */
function showSliders(parameters) {
  const box = part("sliders");
  const names = parameters.map((p) => p.name);
  for (const name of Object.keys(state.given)) if (!names.includes(name)) delete state.given[name];
  if (names.join(" ") !== box.dataset.names) {
    box.dataset.names = names.join(" ");
    box.replaceChildren(...parameters.map(slider));
  }
  parameters.forEach((p, k) => {
    const row = box.children[k], [range, number] = row.querySelectorAll("input");
    row.classList.toggle("given", p.given);
    // The values of a slider in use stay as they are: otherwise its end would move away from the pointer.
    const inUse = document.activeElement === range && row.allowed?.includes(p.value);
    if (!inUse) row.allowed = p.values.length ? p.values : p.value === null ? [] : [p.value];
    range.disabled = row.allowed.length < 2;
    range.max = Math.max(row.allowed.length - 1, 1);
    if (p.value === null) { if (document.activeElement !== number) number.value = ""; return; }
    const at = row.allowed.findIndex((v) => v >= p.value);
    if (document.activeElement !== range || !range.matches(":active")) range.value = at < 0 ? row.allowed.length - 1 : at;
    range.setAttribute("aria-valuetext", `${p.name} = ${p.value}`);
    if (document.activeElement !== number) number.value = p.value;
  });
}

function slider(p) {
  const row = document.createElement("div"), label = document.createElement("label");
  row.className = "slider";
  row.dataset.name = p.name;
  label.textContent = p.name;
  label.title = p.name;
  label.htmlFor = `slider-${p.name}`;
  const range = Object.assign(document.createElement("input"), { type: "range", id: `slider-${p.name}`, min: 0, max: 1, step: 1 });
  const number = Object.assign(document.createElement("input"), { type: "number", step: 1 });
  number.setAttribute("aria-label", `Value of ${p.name}`);
  const reset = Object.assign(document.createElement("button"), { type: "button", textContent: "Default" });
  reset.setAttribute("aria-label", `Default of ${p.name}`);
  const give = (value) => { state.given[p.name] = value; keep(); compile(); };
  range.addEventListener("input", () => { number.value = row.allowed[range.value]; give(row.allowed[range.value]); });
  number.addEventListener("input", () => {
    if (/^-?[0-9]{1,15}$/.test(number.value)) give(Number(number.value));
  });
  reset.addEventListener("click", () => { delete state.given[p.name]; number.blur(); keep(); compile(); range.focus(); });
  row.append(label, range, number, reset);
  return row;
}

/** Show the command line that draws the same. */
function command() {
  const words = Object.entries(state.given).map(([name, value]) => ` -p ${name}=${value}`).join("");
  const file = editor.value === state.shipped ? state.name : `${state.name || "mine"}.sched`;
  part("command").textContent = `chimerac ${file}${words} --emit timeline`;
}

function save(name, data) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data]));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function download() {
  const chosen = state.products[part("products").value];
  if (!chosen.emit) { save(`${state.name || "mine"}.sched`, editor.value); return; }
  part("download").disabled = true;
  try {
    const answer = await ask("export", { text: editor.value, parameters: state.given, emit: chosen.emit, suffix: chosen.suffix });
    if (answer.findings) say(answer.findings.map((x) => `${x.message}${x.help ? ` (${x.help})` : ""}`).join("; "), true);
    else save(answer.name, Uint8Array.from(atob(answer.data), (c) => c.charCodeAt(0)));
  } catch (error) {
    say(error.message, true);
  } finally {
    part("download").disabled = false;
  }
}

/** Open a shipped schedule in the place of the text. */
async function choose(name) {
  const answer = await fetch(`schedules/${encodeURIComponent(name)}`);
  const text = await answer.text();
  state.given = {};
  open(name, text);
  editor.replace(text);
  part("schedules").focus();
}

/** Take the name and the shipped text of what the editor shows from now on. */
function open(name, text) {
  state.name = name;
  state.shipped = text;
  const entry = state.schedules.find((x) => x.name === name);
  part("title").textContent = part("title").title = entry?.title ?? "";
  part("schedules").value = entry ? name : "";
  document.title = `${name} - chimerac playground`;
}

/** Save the text and the parameters, so that they are there after a reload of the page. */
function keep() {
  try {
    sessionStorage.setItem("draft", JSON.stringify({ name: state.name, text: editor.value, shipped: state.shipped, given: state.given }));
  } catch { /* the page works without it */ }
}

function kept() {
  try { return JSON.parse(sessionStorage.getItem("draft")); } catch { return null; }
}

function theme(choice) {
  const dark = choice === "Dark" || (choice === "Auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  part("theme").textContent = choice;
  part("theme").setAttribute("aria-label", `Colours: ${choice === "Auto" ? "as the system has them" : choice.toLowerCase()}`);
  timeline.redraw();
}

/** Give the editor this share of the width of the page. */
function divide(percent) {
  const value = Math.min(75, Math.max(20, percent));
  document.documentElement.style.setProperty("--left", `${value}%`);
  part("divider").setAttribute("aria-valuenow", String(Math.round(value)));
}

async function begin() {
  theme("Auto");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(part("theme").textContent));
  part("theme").addEventListener("click", () => theme({ Auto: "Light", Light: "Dark", Dark: "Auto" }[part("theme").textContent]));
  const offered = await (await fetch("offered.json")).json();
  timeline.setColours(offered.colours);
  timeline.words = offered.words;
  editor.setKeywords(offered.keywords);
  state.schedules = offered.schedules;
  state.products = [{ emit: "", suffix: ".sched", what: "the text" }, ...offered.products];
  const own = new Option("(a file of your own)", "");
  own.disabled = own.hidden = true;
  part("schedules").append(own, ...offered.schedules.map((x) => Object.assign(new Option(x.name), { title: x.title })));
  part("products").append(...state.products.map((x, k) => Object.assign(new Option(x.emit ? `${x.emit} (${x.suffix})` : "the text (.sched)", k), { title: x.what })));
  part("schedules").addEventListener("change", () => choose(part("schedules").value));
  part("products").addEventListener("change", () => { part("download").disabled = part("products").value !== "0" && !state.answer; });
  part("download").addEventListener("click", download);
  part("closer").addEventListener("click", () => state.answer && timeline.setZoom(timeline.zoom * 1.6));
  part("farther").addEventListener("click", () => state.answer && timeline.setZoom(timeline.zoom / 1.6));
  part("fit").addEventListener("click", () => state.answer && timeline.setZoom(1));
  part("copy").addEventListener("click", async () => { await navigator.clipboard.writeText(part("command").textContent); part("copy").textContent = "Copied"; setTimeout(() => { part("copy").textContent = "Copy"; }, 1500); });
  part("divider").addEventListener("pointerdown", (event) => {
    part("divider").setPointerCapture(event.pointerId);
    part("divider").onpointermove = (move) => divide(move.clientX / window.innerWidth * 100);
  });
  part("divider").addEventListener("pointerup", () => { part("divider").onpointermove = null; });
  part("divider").addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
    if (by) { event.preventDefault(); divide(Number(part("divider").getAttribute("aria-valuenow")) + by); }
  });
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") { event.preventDefault(); save(`${state.name || "mine"}.sched`, editor.value); }
  });
  const draft = kept();
  if (draft) { state.given = draft.given; open(draft.name, draft.shipped); editor.text.value = draft.text; }
  else { open(offered.first.name, offered.first.text); editor.text.value = offered.first.text; }
  editor.paint();
  compile();
}

begin();
