// The timeline: a row for each rank, a bar for each task. Only what is visible is drawn, so thousands of tasks scroll smoothly.

// In pixels: the row of a rank, the axis above all rows, the space below them, the names of the ranks, the least bar with a text.
const ROW = 30, TOP = 24, BOTTOM = 8, HEAD = 62, LABEL = 9;
export class Timeline {
  /** parent: the element that the timeline fills; status: the one that describes a task. */
  constructor(parent, status) {
    this.status = status;
    this.scroller = document.createElement("div");
    this.scroller.className = "scroller";
    this.scroller.tabIndex = 0;
    this.scroller.setAttribute("role", "application");
    this.scroller.setAttribute("aria-roledescription", "timeline");
    this.spacer = document.createElement("div");
    this.spacer.className = "spacer";
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.scroller.append(this.canvas, this.spacer);
    parent.append(this.scroller);
    this.zoom = 1;
    this.selected = this.hovered = -1;
    this.scroller.addEventListener("scroll", () => this.redraw());
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    this.scroller.addEventListener("mousemove", (event) => this.point(event));
    this.scroller.addEventListener("mouseleave", () => { this.hovered = -1; this.say(); this.redraw(); });
    this.scroller.addEventListener("click", (event) => { this.point(event); this.selected = this.hovered; this.say(); this.redraw(); });
    this.scroller.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    new ResizeObserver(() => this.layOut()).observe(parent);
  }

  /** Take the colours of tasks: what page_colours of compiler/draw/shades.py returns. */
  setColours({ shades, texts }) { this.shades = shades; this.texts = texts; }

  /** Return the shades of a pipe by operation. */
  shadesOf(pipe) { return this.shades[pipe % this.shades.length]; }

  /** Show the answer of the server for a text without findings. */
  show(data) {
    this.data = data;
    this.end = data.until ?? data.makespan;
    this.hovered = -1;
    const b = data.bars;
    this.rows = Array.from({ length: data.ranks }, () => []);
    for (let k = 0; k < b.rank.length; k += 1) if (b.end[k] > b.start[k]) this.rows[b.rank[k]].push(k);
    for (const row of this.rows) row.sort((x, y) => b.start[x] - b.start[y]);
    this.allReducesOf = Array.from({ length: data.ranks }, () => []);
    data.allReduces.rank.forEach((rank, k) => this.allReducesOf[rank].push(k));
    if (this.selected >= b.rank.length) this.selected = -1;
    const allReduces = data.allReduces.rank.length;
    this.scroller.setAttribute("aria-label", `Timeline of ${data.schedule}: ${data.ranks} ranks, ${data.tasks} tasks` +
      `${allReduces ? `, ${allReduces} all-reduces` : ""}, makespan ${data.makespanText}`);
    this.layOut();
    this.say();
  }

  /** Set the size of the drawing after a change of the page or of the zoom. */
  layOut() {
    if (!this.data) return;
    const wide = Math.max(this.scroller.clientWidth, 200);
    const height = TOP + this.data.ranks * ROW + BOTTOM;
    this.width = HEAD + (wide - HEAD - 14) * this.zoom + 14;
    this.perTime = (this.width - HEAD - 14) / Math.max(this.end, 1); // pixels of an integer of time
    this.spacer.style.width = `${this.width}px`;
    this.spacer.style.height = `${height}px`;
    this.visibleHeight = Math.min(height, Math.max(160, Math.floor(window.innerHeight * 0.6)));
    this.scroller.style.height = `${this.visibleHeight + (this.zoom > 1 ? 14 : 0)}px`;
    this.redraw();
  }

  /** Zoom so that the time at a share of the visible width stays in its place. */
  setZoom(zoom, at = 0.5) {
    const x = this.scroller.clientWidth * at;
    const time = (this.scroller.scrollLeft + x - HEAD) / this.perTime;
    this.zoom = Math.min(Math.max(zoom, 1), Math.max(1, this.end / this.data.scale * 60 / 400, 64));
    this.layOut();
    this.scroller.scrollLeft = time * this.perTime + HEAD - x;
  }

  /** Paint before the next frame of the browser. */
  redraw() { this.frame ??= requestAnimationFrame(() => { this.frame = undefined; this.paint(); }); }

  /** Draw what is visible: first the rows, then the names of the ranks and the axis over their edges. */
  paint() {
    if (!this.data) return;
    const { data, perTime } = this, ratio = window.devicePixelRatio || 1;
    const width = this.scroller.clientWidth, height = this.visibleHeight;
    const left = this.scroller.scrollLeft, top = this.scroller.scrollTop;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const g = this.canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const names = ["back", "lane", "line", "text", "dim", "accent"];
    const frame = {
      g, width, height, top,
      colours: Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])),
      x: (time) => HEAD + time * perTime - left,
      from: Math.max(0, (left - 4) / perTime), // the times and the ranks in view
      to: (left + width - HEAD) / perTime,
      first: Math.max(0, Math.floor(top / ROW)),
      last: Math.min(data.ranks, Math.ceil((top + height) / ROW) + 1),
    };
    g.scale(ratio, ratio);
    g.fillStyle = frame.colours.back;
    g.fillRect(0, 0, width, height);
    g.textBaseline = "middle";
    g.save();
    g.beginPath();
    g.rect(HEAD, TOP, width - HEAD, height - TOP);
    g.clip();
    for (let rank = frame.first; rank < frame.last; rank += 1) this.paintRow(frame, rank);
    g.restore();
    this.paintNames(frame);
    this.paintAxis(frame);
  }

  paintRow(frame, rank) {
    const { g, x, from, to, colours } = frame, b = this.data.bars, row = this.rows[rank];
    const y = TOP + rank * ROW - frame.top;
    g.fillStyle = colours.lane;
    g.fillRect(x(0), y + 3, this.end * this.perTime, ROW - 6);
    let low = 0, high = row.length;
    while (low < high) { const middle = (low + high) >> 1; if (b.end[row[middle]] < from) low = middle + 1; else high = middle; }
    for (let k = low; k < row.length && b.start[row[k]] <= to; k += 1) this.paintBar(frame, row[k], y);
    const { start, end } = this.data.allReduces;
    g.fillStyle = colours.text;
    for (const k of this.allReducesOf[rank]) { // a mark where it begins, a line to its end
      if (end[k] < from || start[k] > to) continue;
      const at = x(start[k]);
      g.fillRect(at, y + ROW - 4, Math.max(x(end[k]) - at, 0), 2);
      g.beginPath();
      g.moveTo(at - 4, y + ROW - 1);
      g.lineTo(at + 4, y + ROW - 1);
      g.lineTo(at, y + ROW - 8);
      g.fill();
    }
  }

  /** Draw a task with its text. Of an overlapped pair the second task has the lower half. */
  paintBar({ g, x, colours, width: visibleWidth }, bar, y) {
    const b = this.data.bars, pair = b.pair[bar];
    const begin = x(b.start[bar]), width = Math.max(x(b.end[bar]) - begin, 0.75), filled = width > 3 ? width - 1 : width;
    g.fillStyle = this.shadesOf(b.pipe[bar])[b.op[bar]];
    g.fillRect(begin, y + 3, filled, ROW - 6);
    if (pair) {
      g.fillStyle = this.shadesOf(pair[2])[pair[1]];
      g.fillRect(begin, y + ROW / 2, filled, ROW / 2 - 3);
    }
    if (bar === this.selected || bar === this.hovered) {
      g.strokeStyle = bar === this.selected ? colours.text : colours.accent;
      g.lineWidth = 2;
      g.strokeRect(begin + 1, y + 4, Math.max(width - 3, 1), ROW - 8);
    }
    if (width < LABEL) return;
    const label = this.label(bar, width);
    setFont(g, 12, 500);
    if (g.measureText(label).width + 4 > width) return;
    const middle = (Math.max(begin, HEAD) + Math.min(begin + width, visibleWidth)) / 2;
    g.textAlign = "center";
    g.fillStyle = this.texts[b.op[bar]];
    if (!pair) {
      g.fillText(label, middle, y + ROW / 2 + 0.5);
      return;
    }
    setFont(g, 10, 600);
    g.fillText(label, middle, y + 9.5);
    g.fillStyle = this.texts[pair[1]];
    g.fillText(width > 28 ? pair[0] : pair[0].slice(1), middle, y + ROW - 9);
  }

  paintNames({ g, height, top, first, last, colours }) {
    g.fillStyle = colours.back;
    g.fillRect(0, 0, HEAD, height);
    setFont(g, 12);
    g.textAlign = "left";
    g.fillStyle = colours.dim;
    for (let rank = first; rank < last; rank += 1) {
      const middle = TOP + rank * ROW - top + ROW / 2;
      if (middle >= TOP) g.fillText(`rank ${rank}`, 10, middle);
    }
  }

  paintAxis({ g, width, x, from, to, colours }) {
    const { scale } = this.data, distance = markDistance(64 / (this.perTime * scale));
    g.fillStyle = colours.back;
    g.fillRect(0, 0, width, TOP);
    setFont(g, 11);
    g.textAlign = "center";
    for (let k = Math.floor(from / scale / distance); k * distance <= Math.min(this.end, to) / scale + 1e-9; k += 1) {
      const at = x(k * distance * scale);
      if (at < HEAD - 1) continue;
      g.fillStyle = colours.line;
      g.fillRect(at, TOP - 5, 1, 5);
      g.fillStyle = colours.dim;
      g.fillText(String(Number((k * distance).toPrecision(6))), Math.min(at, width - 12), 10);
    }
  }

  /** Return the text of a bar: its micro-batches, with the letter of its task where that has room. */
  label(bar, width) {
    const b = this.data.bars;
    const ids = b.name[bar], letter = this.data.letters[b.op[bar]];
    return width > 26 + 6 * ids.length ? `${letter}${ids}` : ids;
  }

  describe(bar) {
    const d = this.data, b = d.bars, time = (t) => String(Number((t / d.scale).toPrecision(6)));
    const pair = b.pair[bar] ? ` together with ${b.pair[bar][0]}` : "";
    const pipe = d.pipes.length > 1 ? `, pipe ${d.pipes[b.pipe[bar]]}` : "";
    return `${this.words[d.letters[b.op[bar]]]} of micro-batch ${b.name[bar]}${pair}, stage ${b.stage[bar]}${pipe}, ` +
      `rank ${b.rank[bar]}, from ${time(b.start[bar])} to ${time(b.end[bar])}`;
  }

  /** Describe the task below the pointer, else the selected one. */
  say() {
    const bar = this.hovered >= 0 ? this.hovered : this.selected;
    this.status.textContent = bar >= 0 ? this.describe(bar) : "";
  }

  point(event) {
    const r = this.scroller.getBoundingClientRect();
    const x = event.clientX - r.left, y = event.clientY - r.top;
    const time = (x + this.scroller.scrollLeft - HEAD) / this.perTime;
    const rank = Math.floor((y + this.scroller.scrollTop - TOP) / ROW);
    // The names of the ranks and the time axis hide what is scrolled below them.
    const b = this.data?.bars, row = (x >= HEAD && y >= TOP && this.rows?.[rank]) || [];
    const hit = row.find((k) => b.start[k] <= time && time < b.end[k]) ?? -1;
    if (hit !== this.hovered) { this.hovered = hit; this.say(); this.redraw(); }
  }

  wheel(event) {
    if (!(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    const r = this.scroller.getBoundingClientRect();
    this.setZoom(this.zoom * Math.exp(-event.deltaY / 300), (event.clientX - r.left) / r.width);
  }

  key(event) {
    if (!this.data || event.ctrlKey || event.metaKey || event.altKey) return;
    const b = this.data.bars, go = { ArrowRight: 1, ArrowLeft: -1 }[event.key], down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "+" || event.key === "=") this.setZoom(this.zoom * 1.5);
    else if (event.key === "-") this.setZoom(this.zoom / 1.5);
    else if (event.key === "0") this.setZoom(1);
    else if (event.key === "Escape") { this.selected = -1; this.say(); this.redraw(); }
    else if (go || down || event.key === "Home" || event.key === "End") {
      const rank = this.selected < 0 ? 0 : b.rank[this.selected];
      let next;
      if (this.selected < 0) [next] = this.rows.find((row) => row.length) ?? [];
      else if (event.key === "Home") [next] = this.rows[rank];
      else if (event.key === "End") next = this.rows[rank].at(-1);
      else if (go) next = this.rows[rank][this.rows[rank].indexOf(this.selected) + go];
      else {
        const row = this.rows[rank + down] ?? [], time = b.start[this.selected];
        next = row.findLast((k) => b.start[k] <= time) ?? row[0];
      }
      if (next !== undefined) this.select(next);
    } else return;
    event.preventDefault();
  }

  select(bar) {
    this.selected = bar;
    this.hovered = -1;
    const b = this.data.bars, s = this.scroller;
    const begin = HEAD + b.start[bar] * this.perTime, end = HEAD + b.end[bar] * this.perTime, y = TOP + b.rank[bar] * ROW;
    if (begin - HEAD < s.scrollLeft) s.scrollLeft = begin - HEAD - 20;
    if (end > s.scrollLeft + s.clientWidth) s.scrollLeft = end - s.clientWidth + 20;
    if (y - TOP < s.scrollTop) s.scrollTop = y - TOP;
    if (y + ROW > s.scrollTop + this.visibleHeight) s.scrollTop = y + ROW - this.visibleHeight;
    this.say();
    this.redraw();
  }

  /** Return what the legend shows: for each pipe and kind of task its shade and its name. */
  legend() {
    const d = this.data, kinds = new Map();
    for (let k = 0; k < d.bars.rank.length; k += 1) {
      const pipe = d.bars.pipe[k] % this.shades.length;
      if (!kinds.has(pipe)) kinds.set(pipe, new Set());
      kinds.get(pipe).add(d.bars.op[k]);
    }
    const name = (pipe) => d.pipes.filter((_, k) => k % this.shades.length === pipe).slice(0, 3).join(", ");
    return [...kinds].sort(([a], [c]) => a - c).map(([pipe, ops]) => ({
      name: d.pipes.length > 1 ? name(pipe) : "",
      kinds: [...ops].sort().map((op) => ({ shade: this.shadesOf(pipe)[op], word: this.words[d.letters[op]] })),
    }));
  }
}

function setFont(g, size, weight = 400) {
  g.font = `${weight} ${size}px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`;
}

/** Return the distance of the marks of the time axis: 1, 2 or 5 times a power of ten, at least so much. */
function markDistance(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((x) => x * power).find((x) => x >= least - 1e-12);
}
