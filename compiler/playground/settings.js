// The fields beside the editor: a slider for each parameter and each cost, the number of replicas, the machine, and whether transfers are arranged for it.

const QUARTERS = 4; // steps of a cost's slider from one integer to the next
const MAX_STEPS = 400; // of a cost's slider

/** The settings with which the text is compiled, as in setting.py, and their fields on the page. */
export class Settings {
  /** parts: elements sliders, costs, width, machine, arrange, error; onChange: is called when the user has changed a setting. */
  constructor(parts, onChange) {
    Object.assign(this, parts);
    this.onChange = onChange;
    this.take({});
    this.width.addEventListener("input", () => {
      if (/^[0-9]{1,15}$/.test(this.width.value)) this.set({ width: Number(this.width.value) });
    });
    this.machine.addEventListener("change", () => this.set({ machine: this.machine.value }));
    this.arrange.addEventListener("change", () => this.set({ arrange: this.arrange.checked }));
  }

  /** Set all settings, such as those from before a reload. A missing one gets its default. */
  take({ parameters = {}, costs = {}, width = 1, machine = "window", arrange = false }) {
    this.given = { parameters, costs, width, machine, arrange };
    this.width.value = width;
    this.machine.value = machine;
    this.arrange.checked = arrange;
  }

  set(changed) {
    Object.assign(this.given, changed);
    this.onChange();
  }

  /** Return the words of a command line for these settings, each with a blank before it. */
  words() {
    const { parameters, costs, width, machine, arrange } = this.given;
    const quoted = (text) => (/^[\w./]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
    return [
      ...Object.entries(parameters).map(([name, value]) => ` -p ${name}=${value}`),
      ...Object.entries(costs).map(([name, text]) => ` --cost ${name}=${quoted(text)}`),
      width === 1 ? "" : ` --width ${width}`,
      arrange ? ` --for ${machine}` : machine === "window" ? "" : ` --machine ${machine}`,
    ].join("");
  }

  /** Set a parameter or a cost. value: undefined restores its default. kind: 'parameters' or 'costs'. */
  give(kind, name, value) {
    if (value === undefined) delete this.given[kind][name];
    else this.given[kind][name] = value;
    this.onChange();
  }

  /** Show the parameters of an answer: their values, and those that the sliders offer. Forget the given values of all other parameters. */
  showParameters(parameters) {
    const names = parameters.map((p) => p.name), { parameters: given } = this.given;
    for (const name of Object.keys(given)) if (!names.includes(name)) delete given[name];
    const rows = rowsOf(this.sliders, names, (name) => slider(name, `slider-${name}`, name, (text) => {
      if (text === "") this.give("parameters", name, undefined);
      else if (/^-?[0-9]{1,15}$/.test(text)) this.give("parameters", name, Number(text));
    }));
    parameters.forEach((p, k) => showValue(rows[k], p, p.values.length ? p.values : p.value === null ? [] : [p.value]));
  }

  /** Show the costs of an answer. A slider goes up to 4, or to twice the cost, rounded up, if that is more. Its steps are quarters; where MAX_STEPS of them are not enough, larger ones. */
  showCosts(costs) {
    const rows = rowsOf(this.costs, costs.map((c) => c.name), (name) => slider(name, `cost-${name}`, `cost of ${name}`, (text) =>
      this.give("costs", name, text.trim() || undefined)));
    costs.forEach((c, k) => {
      const value = numberOf(c.value), most = Math.max(4, Math.ceil(2 * Math.min(value, 1e6))); // at most 2,000,000
      const steps = Math.min(most * QUARTERS, MAX_STEPS);
      const values = Array.from({ length: steps + 1 }, (_, i) => (i * most) / steps);
      showValue(rows[k], { name: c.name, value, text: c.value, given: c.given }, values);
    });
  }

  /** Mark the fields that findings are about, and show these findings below the fields. describe: returns the element of a finding. */
  showErrors(findings, describe) {
    const about = findings.filter((finding) => finding.fields?.length);
    const fields = new Set(about.flatMap((finding) => finding.fields));
    for (const input of [this.width, this.machine, ...this.costs.querySelectorAll("input:not([type=range])")]) {
      const wrong = fields.has(input.dataset.field ?? input.id);
      input.setAttribute("aria-invalid", String(wrong));
      if (wrong) input.setAttribute("aria-describedby", this.error.id);
      else input.removeAttribute("aria-describedby");
    }
    this.error.hidden = about.length === 0;
    this.error.replaceChildren(...about.map(describe));
  }
}

/** Return a cost as a number: 0.5, 1/3, the larger one of '1 to 3', and 0 for a text that is no number. */
function numberOf(text) {
  const found = /([0-9.]+(?:e[+-]?[0-9]+)?)(?:\/([0-9]+))?$/i.exec(text);
  return found ? Number(found[1]) / Number(found[2] ?? 1) || 0 : 0;
}

/** Return the rows of a box, one for each name. Rows that the box already has are kept, since they may be in use. make: returns a new row. */
function rowsOf(box, names, make) {
  if (names.join(" ") !== box.dataset.names) {
    box.dataset.names = names.join(" ");
    const old = new Map([...box.children].map((row) => [row.dataset.name, row]));
    box.replaceChildren(...names.map((name) => old.get(name) ?? make(name)));
  }
  return [...box.children];
}

/** Return a row with a slider, a field, and a button for the default. id: of the slider; what: the name of the value for screen readers; give: is called with the text of a new value, '' for the default. */
function slider(name, id, what, give) {
  const row = document.createElement("div"), label = document.createElement("label");
  row.className = "slider";
  row.dataset.name = label.textContent = label.title = name;
  label.htmlFor = id;
  const range = Object.assign(document.createElement("input"), { type: "range", id, min: 0, max: 1, step: 1 });
  const field = Object.assign(document.createElement("input"), { type: "text", inputMode: "decimal", maxLength: 100, autocomplete: "off", spellcheck: false });
  range.setAttribute("aria-label", what);
  field.setAttribute("aria-label", `Value of ${what}`);
  field.dataset.field = id;
  const reset = Object.assign(document.createElement("button"), { type: "button", textContent: "Default" });
  reset.setAttribute("aria-label", `Default of ${what}`);
  range.addEventListener("input", () => { field.value = row.allowed[range.value]; give(field.value); });
  const unfinished = () => /[./]$/.test(field.value); // such as 0. while 0.5 is typed: sent only when the field is left
  field.addEventListener("input", () => { row.classList.add("given"); if (!unfinished()) give(field.value); });
  field.addEventListener("change", () => { if (unfinished()) give(field.value); });
  reset.addEventListener("click", () => { range.focus(); give(""); });
  row.append(label, range, field, reset);
  return row;
}

/** Show a value in a row. value: null if it is unknown; text: the value as the field shows it; given: the user has given it; values: what the slider offers. The position of a slider and the text of a field stay while they are in use. */
function showValue(row, { name, value, text = value, given }, values) {
  const [range, field] = row.querySelectorAll("input");
  row.classList.toggle("given", given);
  // A slider in use keeps the values that it offers. Otherwise its position would move away from the pointer.
  const inUse = document.activeElement === range && row.allowed?.includes(value);
  if (!inUse) row.allowed = values;
  range.disabled = row.allowed.length < 2;
  range.max = Math.max(row.allowed.length - 1, 1);
  if (value === null) {
    if (document.activeElement !== field) field.value = "";
    return;
  }
  const at = row.allowed.findIndex((v) => v >= value);
  if (document.activeElement !== range || !range.matches(":active")) range.value = at < 0 ? row.allowed.length - 1 : at;
  range.setAttribute("aria-valuetext", `${name} = ${text}`);
  if (document.activeElement !== field) field.value = text;
}
