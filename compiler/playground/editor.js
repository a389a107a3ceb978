// The editor: a textarea, and behind it a layer that shows the same text with colours and underlines. Both have the same font,
// and neither wraps lines. So the browser itself puts every underline below its word, also with tabs and wide characters.

const MAX_COLOURED = 60000; // characters; a longer text is shown without colours
const LINE = 20; // height of a line in pixels, as in playground.css
const CLASSES = ["comment", "keyword", "literal"]; // the CSS class of each group of the expression Editor.tokens

export class Editor {
  /** parts: the elements text, layer, gutter and tooltip; onChange: is called after each change of the text. */
  constructor(parts, onChange) {
    Object.assign(this, parts);
    this.findings = []; // {finding, begin, end}: findings that have a place, with the offsets of their text
    this.marks = []; // {node, finding}: the underlined elements of the layer, once for each finding that they belong to
    this.text.addEventListener("input", () => { this.findings = this.moved(); this.paint(); onChange(); });
    this.text.addEventListener("scroll", () => { this.align(); this.hideTooltip(); });
    this.text.addEventListener("keydown", (event) => this.key(event));
    this.text.addEventListener("mousemove", (event) => this.hover(event));
    this.text.addEventListener("mouseleave", () => this.hideTooltip());
    this.text.addEventListener("blur", () => this.hideTooltip());
    document.addEventListener("selectionchange", () => { if (document.activeElement === this.text) this.atCaret(); });
    new ResizeObserver(() => this.align()).observe(this.text);
  }

  get value() { return this.text.value; }

  /** Set the words that are coloured as keywords. */
  setKeywords(words) { this.tokens = new RegExp(`(#[^\\n]*)|\\b(${words.join("|")})\\b|\\b([0-9]+)\\b`, "g"); }

  /** Replace the whole text. The browser's undo leads back to the text before, where execCommand works. */
  replace(value) {
    this.text.focus();
    this.text.setSelectionRange(0, this.text.value.length);
    this.findings = [];
    if (!document.execCommand("insertText", false, value) || this.text.value !== value) {
      this.text.value = value;
      this.text.dispatchEvent(new Event("input"));
    }
    this.text.setSelectionRange(0, 0);
    this.text.scrollTo(0, 0);
    this.paint();
  }

  /** Show findings: those with a place are underlined. Columns count characters, and JavaScript counts units of UTF-16. */
  show(findings) {
    const lines = this.value.split("\n"), starts = [];
    let at = 0;
    for (const line of lines) { starts.push(at); at += line.length + 1; }
    this.findings = findings.filter((finding) => finding.place).map((finding) => {
      const [line, column, endLine, endColumn] = finding.place;
      const begin = offset(lines, starts, line, column, this.value.length);
      return { finding, begin, end: Math.max(offset(lines, starts, endLine, endColumn, this.value.length), begin) };
    });
    this.text.setAttribute("aria-invalid", String(findings.length > 0));
    this.paint();
    if (document.activeElement === this.text) this.atCaret();
  }

  /** Return the findings after a change of the text: those after the change move with their text, and those that it touches are removed. */
  moved() {
    const now = this.value, before = this.painted ?? "";
    let head = 0, tail = 0; // characters at the beginning and at the end that have not changed
    const shorter = Math.min(now.length, before.length);
    while (head < shorter && now[head] === before[head]) head += 1;
    while (tail < shorter - head && now[now.length - 1 - tail] === before[before.length - 1 - tail]) tail += 1;
    const by = now.length - before.length;
    return this.findings.flatMap((x) => {
      if (x.end < head) return [x];
      if (x.begin >= before.length - tail) return [{ ...x, begin: x.begin + by, end: x.end + by }];
      return [];
    });
  }

  /** Fill the layer with the text, in pieces that have one colour and one set of underlines, and the gutter with numbers. */
  paint() {
    const value = this.painted = this.value;
    const coloured = this.tokens && value.length <= MAX_COLOURED ? colouredParts(value, this.tokens) : [];
    const wrong = this.findings.map(({ finding, begin, end }) => ({ finding, begin, end: Math.max(end, begin + 1) }))
      .sort((a, b) => a.begin - b.begin || b.end - a.end);
    const cuts = new Set([0, value.length]);
    for (const x of [...coloured, ...wrong]) { cuts.add(x.begin); cuts.add(Math.min(x.end, value.length)); }
    const points = [...cuts].sort((a, b) => a - b);
    const nodes = [];
    this.marks = [];
    let p = 0; // the first coloured part that does not end before the piece
    for (let k = 0; k + 1 < points.length || (k === 0 && !value); k += 1) {
      const begin = points[k], end = points[k + 1] ?? begin;
      while (p < coloured.length && coloured[p].end <= begin) p += 1;
      const kind = coloured[p] && coloured[p].begin <= begin && begin < coloured[p].end ? coloured[p].kind : "";
      const inside = wrong.filter((x) => x.begin <= begin && begin < x.end);
      const shown = value.slice(begin, end);
      if (!inside.length) { nodes.push(kind ? span(kind, shown) : shown); continue; }
      // The end of a line is shown as a blank, so that a finding there can be seen.
      const text = shown === "\n" ? " \n" : shown;
      const node = span(`wrong ${kind}`.trim(), text);
      nodes.push(node);
      for (const { finding } of inside) this.marks.push({ node, finding });
    }
    for (const { finding } of wrong.filter((x) => x.begin >= value.length)) { // at the end of the text
      const node = span("wrong", " ");
      nodes.push(node);
      this.marks.push({ node, finding });
    }
    this.layer.replaceChildren(...nodes, "\n");
    this.number();
    this.align();
  }

  /** Number the lines in the gutter. Those in which a finding begins are marked. */
  number() {
    const count = this.value.split("\n").length;
    const bad = new Set(this.findings.map((x) => this.value.slice(0, x.begin).split("\n").length));
    const key = `${count} ${[...bad]}`;
    if (key === this.numbered) return;
    this.numbered = key;
    const nodes = [];
    for (let k = 1; k <= count; k += 1) nodes.push(bad.has(k) ? span("bad", String(k)) : String(k), "\n");
    const column = document.createElement("div");
    column.append(...nodes);
    this.gutter.replaceChildren(column);
  }

  /** Scroll the layer and the gutter to where the text is. */
  align() {
    this.layer.style.transform = `translate(${-this.text.scrollLeft}px, ${-this.text.scrollTop}px)`;
    const column = this.gutter.firstChild;
    if (column) column.style.transform = `translateY(${-this.text.scrollTop}px)`;
  }

  /** Handle a key: Enter indents like the line before, and more after an opening brace; F8 goes to the next finding; Escape hides the tooltip. */
  key(event) {
    if (event.key === "Enter" && !event.ctrlKey && !event.metaKey && !event.isComposing) {
      const line = this.value.slice(0, this.text.selectionStart).split("\n").pop();
      const indent = /^[ \t]*/.exec(line)[0] + (/\{\s*$/.test(line) ? "    " : "");
      if (indent) { event.preventDefault(); document.execCommand("insertText", false, `\n${indent}`); }
    }
    if (event.key === "F8") { // as in other editors: the next error
      event.preventDefault();
      const next = this.findings.map((x) => x.begin).sort((a, b) => a - b);
      if (next.length) this.select(next.find((x) => x > this.text.selectionStart) ?? next[0]);
    }
    if (event.key === "Escape") this.hideTooltip();
  }

  /** Select the text of the finding that begins at an offset, and scroll it into view. */
  select(at) {
    const found = this.findings.find((x) => x.begin === at);
    this.text.focus();
    this.text.setSelectionRange(at, found ? found.end : at);
    const line = this.value.slice(0, at).split("\n").length;
    const y = line * LINE, top = this.text.scrollTop, height = this.text.clientHeight;
    if (y < top + 2 * LINE || y > top + height - 2 * LINE) this.text.scrollTop = Math.max(0, y - height / 2);
    this.align();
    this.atCaret();
  }

  /** Select the text of a finding. */
  goTo(finding) {
    const found = this.findings.find((x) => x.finding === finding);
    if (found) this.select(found.begin);
  }

  /** Show the findings under the pointer; if there are none, those at the caret while the text has the focus. */
  hover(event) {
    const over = this.marks.filter(({ node }) => [...node.getClientRects()].some((r) =>
      event.clientX >= r.left - 2 && event.clientX <= r.right + 2 && event.clientY >= r.top && event.clientY <= r.bottom + 3));
    if (over.length) this.showTooltip(over); else if (document.activeElement !== this.text) this.hideTooltip(); else this.atCaret();
  }

  /** Show the findings at the caret. */
  atCaret() {
    const at = this.text.selectionStart;
    const here = this.findings.filter((x) => x.begin <= at && at <= Math.max(x.end, x.begin + 1)).map((x) => x.finding);
    const marks = this.marks.filter((m) => here.includes(m.finding));
    if (marks.length) this.showTooltip(marks); else this.hideTooltip();
  }

  /** Show the findings of some marks at the first mark: below it if there is room, else above it. Nothing is shown if this mark is scrolled out of view. */
  showTooltip(marks) {
    const findings = [...new Set(marks.map((m) => m.finding))];
    this.tooltip.replaceChildren(...findings.map((x) => describe(x, false)));
    this.tooltip.hidden = false;
    const r = marks[0].node.getBoundingClientRect(), field = this.text.getBoundingClientRect();
    if (r.bottom < field.top || r.top > field.bottom || r.right < field.left || r.left > field.right) { this.hideTooltip(); return; }
    const size = this.tooltip.getBoundingClientRect();
    const below = r.bottom + 8 + size.height < window.innerHeight ? r.bottom + 8 : r.top - size.height - 8;
    this.tooltip.style.left = `${Math.max(8, Math.min(Math.max(r.left, field.left), window.innerWidth - size.width - 8))}px`;
    this.tooltip.style.top = `${Math.max(8, below)}px`;
  }

  hideTooltip() { this.tooltip.hidden = true; }
}

/** Return an element that shows a finding. full: with its notes. */
export function describe(finding, full) {
  const box = document.createElement("div");
  if (finding.code) box.append(span("code", finding.code), " ");
  box.append(finding.message);
  if (finding.label) box.append(span("where", ` (${finding.label})`));
  for (const note of full ? finding.notes : []) box.append(span(note.includes("\n") ? "note drawn" : "note", note));
  if (finding.help) {
    const help = span("help", "");
    const word = document.createElement("b");
    word.textContent = "Help: ";
    help.append(word, finding.help);
    box.append(help);
  }
  return box;
}

/** Return a span element. kind: its CSS classes. */
export function span(kind, text) {
  const node = document.createElement("span");
  node.className = kind;
  node.textContent = text;
  return node;
}

/** Return the coloured parts of a text: offsets and CSS class. */
function colouredParts(value, tokens) {
  const parts = [];
  for (const match of value.matchAll(tokens)) {
    const kind = CLASSES[match[1] !== undefined ? 0 : match[2] !== undefined ? 1 : 2];
    parts.push({ begin: match.index, end: match.index + match[0].length, kind });
  }
  return parts;
}

/** Return the offset of a line and a column. Both count from 1, columns in characters. starts: the offset of each line; length: of the text. */
function offset(lines, starts, line, column, length) {
  if (line > lines.length) return length;
  const text = lines[line - 1];
  let at = 0;
  for (let k = 1; k < column && at < text.length; k += 1) at += text.codePointAt(at) > 0xffff ? 2 : 1;
  return starts[line - 1] + at;
}
