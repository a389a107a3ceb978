// The page: it sends the text and the settings when they change, and shows the answer: a timeline, or findings in their places.

import { Editor, describe, span } from "./editor.js";
import { Settings } from "./settings.js";

// Milliseconds without a change of the text, after which it is sent: the least and the most. The wait grows with the time that
// the viewer needs for a drawing, so that a large program is drawn only in pauses of typing. A setting is sent at once.
const WAIT = 120, MOST_WAIT = 1000;
const TEXT_PRODUCT = "0"; // the value of the text itself in the menu of products
const part = (id) => document.getElementById(id);
// name: of the schedule that was opened; opened: its text then; timer: of the next compilation; wait: milliseconds without a
// change before it; busy: an answer is awaited; waiting: the text or a setting has changed meanwhile; answer: the one that was
// shown last, null before the first one and if it has findings; schedules, products: what the menus offer.
const state = { name: "", opened: "", waiting: false, busy: false, timer: 0, wait: WAIT, answer: null, schedules: [], products: [] };

const editor = new Editor({ text: part("text"), layer: part("layer"), gutter: part("gutter"), tooltip: part("tooltip") }, changed);
const settings = new Settings(
  { sliders: part("sliders"), costs: part("costs"), width: part("width"), machine: part("machine"), arrange: part("arrange"), error: part("setting-error") },
  () => { keep(); compile(); },
);
const frame = part("viewer"); // the viewer of --emit html, without its header
let viewer = null; // of the frame's window, with the functions replace and setTheme

/** Return the server's answer. kind: "draw" or "export". Throws TypeError if the server does not answer, Error if it refuses the request. */
async function ask(kind, body) {
  const answer = await fetch(kind, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error);
  return data;
}

function changed() {
  keep();
  clearTimeout(state.timer);
  state.timer = setTimeout(compile, state.wait);
}

/** Send the text and the settings. While an answer is awaited, nothing is sent. If they have changed when it comes, they are sent again. */
async function compile() {
  if (state.busy) { state.waiting = true; return; }
  state.busy = true;
  const text = editor.value, sent = performance.now();
  const slow = setTimeout(() => say("compiling ...", false), 400);
  try {
    const answer = await ask("draw", { text, ...settings.given });
    if (text === editor.value) receive(answer, performance.now() - sent);
  } catch (error) {
    const gone = error instanceof TypeError; // fetch could not connect
    say(gone ? "the server does not answer: has chimerac serve ended?" : error.message, true);
    part("right").classList.add("old");
  } finally {
    clearTimeout(slow);
    state.busy = false;
    if (state.waiting) { state.waiting = false; compile(); }
  }
}

/** Show an answer. taken: milliseconds since its request was sent. */
function receive(answer, taken) {
  const findings = answer.findings ?? [];
  editor.show(findings);
  part("findings").replaceChildren(...findings.map(item));
  part("right").classList.toggle("old", findings.length > 0);
  part("download").disabled = findings.length > 0 && part("products").value !== TEXT_PRODUCT;
  if (answer.parameters) settings.showParameters(answer.parameters);
  if (answer.costs) settings.showCosts(answer.costs);
  settings.showErrors(findings, settingError);
  if (findings.length) {
    const hidden = answer.count - findings.length;
    const errors = answer.count === 1 ? "1 error" : `${answer.count} errors`;
    say(`${errors}${hidden > 0 ? `, the first ${findings.length} are shown` : ""}`, true);
    state.answer = null;
  } else {
    state.answer = answer;
    const cut = answer.untilText === null ? "" : `; drawn up to time ${answer.untilText}`;
    say(`compiled and verified; answered in ${Math.round(taken)} ms${cut}`, false);
    figures(answer);
    const before = performance.now();
    viewer.replace([answer.panel]);
    state.wait = Math.min(MOST_WAIT, Math.max(WAIT, 3 * (performance.now() - before)));
  }
  command();
}

/** Show a message in the status line. bad: it is about an error. */
function say(message, bad) {
  part("status").textContent = message;
  part("status").classList.toggle("bad", bad);
}

/** Return the entry of a finding in the list below the editor. */
function item(finding) {
  const row = document.createElement("li"), button = document.createElement("button");
  button.type = "button";
  if (finding.place) button.append(span("where", `${finding.place[0]}:${finding.place[1]}  `));
  const body = describe(finding, true);
  button.append(...body.childNodes);
  button.addEventListener("click", () => editor.goTo(finding));
  row.append(button);
  return row;
}

/** Return '3', or '1 to 4' for different numbers. */
function rangeText(numbers) {
  const sorted = [...numbers].sort((a, b) => Number(a) - Number(b)), least = sorted[0], greatest = sorted.at(-1);
  return least === greatest ? String(least) : `${least} to ${greatest}`;
}

function figures(answer) {
  const rows = [
    ["Makespan", `${answer.makespanText}${answer.unit ? ` ${answer.unit}` : ""}`],
    ["Bubble ratio", `${(answer.bubbleRatio * 100).toFixed(1)} %`],
    ["Idle per rank", rangeText(answer.idle)],
    ["Activations at the peak", rangeText(answer.activations)],
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

/** Return the element of a finding about settings, which is shown below their fields. */
function settingError(finding) {
  const row = document.createElement("li");
  row.append(...describe(finding, true).childNodes);
  return row;
}

/** Show the command line that draws the same timeline. The file of a changed text has the name under which the text is downloaded. */
function command() {
  const isShipped = state.schedules.some((x) => x.name === state.name) && editor.value === state.opened;
  const file = isShipped ? state.name : `${state.name || "mine"}.sched`;
  part("command").textContent = `chimerac ${file}${settings.words()} --emit timeline`;
}

function save(name, data) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data]));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000); // ms: the browser has its data by then
}

/** Download the product that is chosen in the menu. */
async function download() {
  const chosen = state.products[part("products").value];
  if (!chosen.emit) { save(`${state.name || "mine"}.sched`, editor.value); return; }
  part("download").disabled = true;
  try {
    const answer = await ask("export", { text: editor.value, ...settings.given, emit: chosen.emit, suffix: chosen.suffix });
    if (answer.findings) say(answer.findings.map((x) => `${x.message}${x.help ? ` (${x.help})` : ""}`).join("; "), true);
    else save(answer.name, Uint8Array.from(atob(answer.data), (c) => c.charCodeAt(0)));
  } catch (error) {
    say(error.message, true);
  } finally {
    part("download").disabled = part("right").classList.contains("old") && part("products").value !== TEXT_PRODUCT;
  }
}

/** Open a shipped schedule in the place of the text. */
async function choose(name) {
  const answer = await fetch(`schedules/${encodeURIComponent(name)}`);
  const text = await answer.text();
  settings.take({ ...settings.given, parameters: {} }); // the other settings stay, to compare schedules
  open(name, text);
  editor.replace(text);
  part("schedules").focus();
}

/** Show the title of the schedule that the editor shows from now on. Note its name, and the text with which it was opened. */
function open(name, text) {
  state.name = name;
  state.opened = text;
  const entry = state.schedules.find((x) => x.name === name);
  part("title").textContent = part("title").title = entry?.title ?? "";
  part("schedules").value = entry ? name : "";
  document.title = `${name} - chimerac playground`;
}

/** Save the text and the settings, so that they are there after a reload of the page. */
function keep() {
  try {
    sessionStorage.setItem("draft", JSON.stringify({ name: state.name, text: editor.value, opened: state.opened, settings: settings.given }));
  } catch { /* the page works without it */ }
}

/** Return what was saved before a reload of the page, else null. */
function kept() {
  try { return JSON.parse(sessionStorage.getItem("draft")); } catch { return null; }
}

function isDark() {
  const choice = part("theme").textContent;
  return choice === "Dark" || (choice === "Auto" && matchMedia("(prefers-color-scheme: dark)").matches);
}

/** Set the colours. choice: "Auto", "Light" or "Dark". */
function theme(choice) {
  part("theme").textContent = choice;
  part("theme").setAttribute("aria-label", `Colours: ${choice === "Auto" ? "as the system has them" : choice.toLowerCase()}`);
  const name = isDark() ? "dark" : "light";
  document.documentElement.dataset.theme = name;
  viewer?.setTheme(name);
}

/** Wait until the viewer's frame is loaded. From then on this page handles two keys for it: that of the colours, and Ctrl-S. */
async function connect() {
  if (!frame.contentWindow.viewer) await new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
  viewer = frame.contentWindow.viewer;
  frame.contentDocument.addEventListener("switchtheme", () => theme(isDark() ? "Light" : "Dark"));
  frame.contentDocument.addEventListener("keydown", saveKey);
}

/** Download the text if the key is Ctrl-S or Cmd-S. */
function saveKey(event) {
  if ((event.ctrlKey || event.metaKey) && event.key === "s") { event.preventDefault(); save(`${state.name || "mine"}.sched`, editor.value); }
}

/** Give the editor this percentage of the width of the page, from 20 to 75. */
function divide(percent) {
  const value = Math.min(75, Math.max(20, percent));
  document.documentElement.style.setProperty("--left", `${value}%`);
  part("divider").setAttribute("aria-valuenow", String(Math.round(value)));
}

async function begin() {
  theme("Auto");
  await connect();
  theme("Auto"); // now for the viewer too
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(part("theme").textContent));
  part("theme").addEventListener("click", () => theme({ Auto: "Light", Light: "Dark", Dark: "Auto" }[part("theme").textContent]));
  const offered = await (await fetch("offered.json")).json();
  editor.setKeywords(offered.keywords);
  state.schedules = offered.schedules;
  state.products = [{ emit: "", suffix: ".sched", what: "the text" }, ...offered.products];
  const own = new Option("(a file of your own)", "");
  own.disabled = own.hidden = true;
  part("schedules").append(own, ...offered.schedules.map((x) => Object.assign(new Option(x.name), { title: x.title })));
  part("products").append(...state.products.map((x, k) => Object.assign(new Option(x.emit ? `${x.emit} (${x.suffix})` : "the text (.sched)", k), { title: x.what })));
  part("schedules").addEventListener("change", () => choose(part("schedules").value));
  part("products").addEventListener("change", () => { part("download").disabled = part("products").value !== TEXT_PRODUCT && !state.answer; });
  part("download").addEventListener("click", download);
  part("machine").append(...offered.machines.map((name) => new Option(name)));
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
  document.addEventListener("keydown", saveKey);
  const draft = kept();
  settings.take(draft?.settings ?? {});
  if (draft) { open(draft.name, draft.opened); editor.text.value = draft.text; }
  else { open(offered.first.name, offered.first.text); editor.text.value = offered.first.text; }
  editor.paint();
  compile();
}

begin();
