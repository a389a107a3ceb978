// The lanes of ranks: where they are, what is drawn in them, and which instruction is at a point.
// A row of `layout.rows` is what is drawn of a rank. Any other `row` is the index of an instruction in the columns of its program.

const MARGIN = 76; // pixels at the left for the names of ranks
const LABEL = 11; // size of a label's font in pixels
const FINE = 5; // pixels: many bars that have less room each, on average, are drawn as shares of the time (drawTasks)
const MOST_BARS = 9000; // of tasks in view: if there are more, only lanes with few bars draw them one by one
const MOST_MESSAGES = 1500; // of a program in a frame; if there are more, none is drawn
// A sign is the mark of an instruction that is no task. Such an instruction takes no time of its own.
const SIGN = 11; // pixels: the least distance between the left edges of two signs
const MOST_SIGNS = 4000; // of a program in a frame, as drawsSigns estimates them; if there are more, they are not drawn

/**
 * Return where everything is, in pixels: {rows, titles, height}. rows: [{panel, rank, top, height, lanes: {name: [top, height]}}], one
 * for each rank; titles: [{panel, top}] if there are several panels; height: of everything. show: which lanes are shown. available: the
 * height in which all ranks should fit; if they are too many, it is exceeded.
 */
function layOut(panels, show, available) {
  const ranks = panels.reduce((sum, p) => sum + p.ranks, 0);
  const extra = (p) => // about the pixels of a rank besides its tasks: the measured lane grows with taskHeight
    (show.signs ? 13 : 0) + (p.measured ? 17 + (show.differences ? 20 : 0) : 0) + (show.memory ? 26 : 0) + 7;
  const heads = panels.length > 1 ? 30 * panels.length : 4; // pixels of all titles, or above the only panel
  const others = panels.reduce((sum, p) => sum + extra(p) * p.ranks, heads);
  const taskHeight = Math.max(17, Math.min(44, Math.floor((available - others) / ranks)));
  const rows = [];
  const titles = [];
  let top = 4;
  for (const panel of panels) {
    if (panels.length > 1) {
      titles.push({ panel, top });
      top += 26;
    }
    for (let rank = 0; rank < panel.ranks; rank++) {
      const lanes = { tasks: [top, taskHeight] };
      let end = top + taskHeight;
      const add = (name, height, gap) => {
        lanes[name] = [end + gap, height];
        end += height + gap;
      };
      if (panel.measured) {
        add("measured", Math.max(15, Math.round(taskHeight * 0.8)), 1);
        if (show.differences) add("differences", 18, 2);
      }
      if (show.signs) add("signs", 12, 1);
      if (show.memory) add("memory", 23, 3);
      rows.push({ panel, rank, top, height: end - top, lanes });
      top = end + 7;
    }
    top += panels.length > 1 ? 4 : 0;
  }
  return { rows, titles, height: top };
}

/** The drawing of all lanes on one canvas. `view`: {from, to} in units of time. */
class Lanes {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.colours = themeColours();
    this.bins = new Float32Array(0); // in drawShares, by column of pixels and shade: a share of the time
    this.images = new Map(); // by size
    this.shades = new Map(); // by program: what shadesOf returns
  }

  /** Read the colours of the page again. */
  retheme() {
    this.colours = themeColours();
    this.images.clear();
    this.shades.clear();
  }

  resize(width, height) {
    this.ratio = globalThis.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
    this.images.clear();
  }

  /** Return the x of a time, in pixels. time: in units. */
  x(time) {
    return MARGIN + ((time - this.view.from) / (this.view.to - this.view.from)) * (this.width - MARGIN);
  }

  /** Return the time at an x in pixels, in units. */
  timeAt(x) {
    return this.view.from + ((x - MARGIN) / (this.width - MARGIN)) * (this.view.to - this.view.from);
  }

  /** Draw a frame. state: what viewer.js keeps. */
  draw(state) {
    const { context: c, colours } = this;
    this.view = state.view;
    this.show = state.show;
    this.pixelsPerUnit = (this.width - MARGIN) / (state.view.to - state.view.from);
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = colours.back;
    c.fillRect(0, 0, this.width, this.height);
    const visible = state.layout.rows.filter((r) => r.top + r.height >= state.scroll && r.top <= state.scroll + this.height);
    this.offset = -state.scroll;
    this.detailed = this.barsIn(visible) <= MOST_BARS;
    for (const row of visible) this.drawRank(row, state);
    c.save();
    c.beginPath();
    c.rect(MARGIN, 0, this.width - MARGIN, this.height);
    c.clip();
    if (state.show.messages) this.drawMessages(visible, state);
    if (state.show.path) this.drawPath(state);
    if (state.explained) this.drawMoment(state);
    this.drawChosen(state);
    c.restore();
    this.drawTitles(state);
  }

  /**
   * Return the indices in `rows` of the first bar in view and of the one after the last. rows: the bars of a rank, tasks or idle time, by
   * their indices in `start` and `end`. scale: how many of these times make one unit.
   */
  range(rows, start, end, scale) {
    const from = this.view.from * scale;
    const to = this.view.to * scale;
    const first = firstIndex(0, rows.length, (i) => end[rows[i]] > from);
    return [first, firstIndex(first, rows.length, (i) => start[rows[i]] >= to)];
  }

  /** Return the number of tasks in view on the ranks of these rows of the layout. */
  barsIn(visible) {
    let count = 0;
    for (const { panel, rank } of visible) {
      const [first, stop] = this.range(panel.tasks.of(rank), panel.start, panel.end, panel.scale);
      count += stop - first;
    }
    return count;
  }

  drawRank({ panel, rank, top, lanes }, state) {
    const { context: c, colours } = this;
    const y = (lane) => lane[0] + this.offset;
    c.fillStyle = colours.text;
    c.font = "600 12px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "left";
    c.fillText(`rank ${rank}`, 8, y(lanes.tasks) + lanes.tasks[1] / 2);
    c.fillStyle = colours.dim;
    c.font = "10px system-ui, sans-serif";
    const names = { measured: "measured", differences: "late by", signs: "instr.", memory: "memory" };
    for (const [lane, name] of Object.entries(names)) {
      if (lanes[lane]) c.fillText(name, 8, y(lanes[lane]) + lanes[lane][1] / 2);
    }
    c.fillStyle = colours.lane;
    c.fillRect(MARGIN, y(lanes.tasks), this.width - MARGIN, lanes.tasks[1]);
    c.save();
    c.beginPath();
    c.rect(MARGIN, top + this.offset - 3, this.width - MARGIN, 400); // 400: no rank is as high
    c.clip();
    const predicted = { start: panel.start, end: panel.end };
    const asShares = this.drawTasks(panel, rank, predicted, y(lanes.tasks), lanes.tasks[1], state.show.bubbles);
    if (state.show.bubbles && !asShares) this.drawIdle(panel, rank, y(lanes.tasks), lanes.tasks[1]);
    if (lanes.measured) {
      c.fillStyle = colours.lane;
      c.fillRect(MARGIN, y(lanes.measured), this.width - MARGIN, lanes.measured[1]);
      this.drawTasks(panel, rank, panel.measured, y(lanes.measured), lanes.measured[1], false);
    }
    if (lanes.differences) this.drawDifferences(panel, rank, y(lanes.differences), lanes.differences[1]);
    if (lanes.signs) this.drawSigns(panel, rank, y(lanes.signs), lanes.signs[1]);
    if (lanes.memory) this.drawMemory(panel, rank, y(lanes.memory), lanes.memory[1]);
    c.restore();
  }

  /**
   * Draw the tasks of a rank, and return whether they were drawn as shares of the time. times: their {start, end}; withIdle: draw the
   * shares of the idle time beside those of the tasks.
   */
  drawTasks(p, rank, times, top, height, withIdle) {
    const rows = p.tasks.of(rank);
    const [first, stop] = this.range(rows, times.start, times.end, p.scale);
    const { context: c } = this;
    const wide = this.width - MARGIN;
    // A few bars are always drawn one by one.
    if (stop - first > 40 && (!this.detailed || wide / (stop - first) < FINE)) {
      this.drawShares(p, rank, rows, first, stop, times, top, height, withIdle);
      return true;
    }
    c.textBaseline = "middle";
    c.textAlign = "left";
    c.font = `${LABEL}px ui-monospace, Menlo, Consolas, monospace`;
    const letter = LABEL * 0.602; // the width of a letter of a monospaced font
    for (let i = first; i < stop; i++) {
      const row = rows[i];
      const from = Math.max(this.x(times.start[row] / p.scale), MARGIN - 3);
      const to = Math.min(this.x(times.end[row] / p.scale), this.width + 3);
      const width = Math.max(to - from - (to - from > 3 ? 1 : 0), 0.6);
      const op = p.op[row];
      const pipe = p.pipe[row];
      c.fillStyle = SHADES[pipe % SHADES.length][op];
      c.fillRect(from, top, width, height);
      if (width < 5) continue;
      const kind = PIPE_PATTERNS[pipe % PIPE_PATTERNS.length];
      if (kind !== "none") {
        c.fillStyle = pattern(c, kind, LINES[op]);
        c.fillRect(from, top, width, height);
      }
      if (width > 2 * letter) {
        const text = label(p, row);
        c.fillStyle = TEXTS[op];
        if (text.length * letter + 3 <= width) c.fillText(text, from + 3, top + height / 2 + 0.5);
        else c.fillText(text[0], from + (width - letter) / 2, top + height / 2 + 0.5);
      }
    }
    return false;
  }

  /**
   * Draw bars that are too small to be drawn one by one: in each column of pixels, the share of each kind of task in the column's time.
   * rows: the tasks of the rank; first, stop: the indices in `rows` of the first one in view, and of the one after the last; times,
   * withIdle: as of drawTasks.
   */
  drawShares(p, rank, rows, first, stop, times, top, height, withIdle) {
    const { shadeOfKind, shadeOfCause, shades } = this.shadesOf(p);
    const count = shades.length;
    const { ratio } = this;
    const wide = Math.max(1, Math.round((this.width - MARGIN) * ratio));
    const high = Math.max(1, Math.round(height * ratio));
    if (this.bins.length < wide * count) this.bins = new Float32Array(wide * count);
    const bins = this.bins;
    bins.fill(0, 0, wide * count);
    const pixelsPerTime = wide / ((this.view.to - this.view.from) * p.scale);
    const from = this.view.from * p.scale;
    const add = (start, end, shade) => {
      const a = Math.max(0, (start - from) * pixelsPerTime);
      const b = Math.min(wide, (end - from) * pixelsPerTime);
      if (b <= a) return;
      const last = Math.min(Math.floor(b), wide - 1);
      let x = Math.floor(a);
      if (x === last) bins[x * count + shade] += b - a;
      else {
        bins[x * count + shade] += x + 1 - a;
        for (x++; x < last; x++) bins[x * count + shade] += 1;
        bins[last * count + shade] += b - last;
      }
    };
    for (let i = first; i < stop; i++) {
      const row = rows[i];
      add(times.start[row], times.end[row], shadeOfKind[(p.pipe[row] % SHADES.length) * TEXTS.length + p.op[row]]);
    }
    if (withIdle) {
      const bars = p.idleOf.of(rank);
      const { start, end, cause } = p.idle;
      const begin = firstIndex(0, bars.length, (i) => end[bars[i]] > from);
      const limit = this.view.to * p.scale;
      for (let i = begin; i < bars.length && start[bars[i]] < limit; i++) {
        add(start[bars[i]], end[bars[i]], shadeOfCause[cause[bars[i]]]);
      }
    }
    const image = this.image(wide, high);
    const pixels = image.pixels;
    const empty = packed(this.colours.lane);
    for (let x = 0; x < wide; x++) {
      let y = high;
      let sum = 0;
      for (let shade = 0; shade < count; shade++) {
        const share = bins[x * count + shade];
        if (share === 0) continue;
        sum += share;
        const until = Math.max(0, Math.round(high * (1 - sum)));
        while (y > until) pixels[--y * wide + x] = shades[shade];
      }
      while (y > 0) pixels[--y * wide + x] = empty;
    }
    this.context.putImageData(image.data, Math.round(MARGIN * ratio), Math.round(top * ratio));
  }

  /** Return an image of this size as {data, pixels}, the same one in every frame. pixels: its colours, one number for each pixel. */
  image(wide, high) {
    const key = `${wide} ${high}`;
    if (!this.images.has(key)) {
      const data = this.context.createImageData(wide, high);
      this.images.set(key, { data, pixels: new Uint32Array(data.data.buffer) });
    }
    return this.images.get(key);
  }

  /**
   * Return the shades of a program's bars. shades: as numbers for an image; shadeOfKind, shadeOfCause: the index in `shades` of each
   * kind of task (a pipe and an operation), and of each cause of idle time.
   */
  shadesOf(p) {
    if (!this.shades.has(p)) {
      const shades = [];
      const shadeOfKind = new Int32Array(SHADES.length * TEXTS.length).fill(-1);
      for (const row of p.tasks.all) {
        const kind = (p.pipe[row] % SHADES.length) * TEXTS.length + p.op[row];
        if (shadeOfKind[kind] < 0) shadeOfKind[kind] = shades.push(SHADES.flat()[kind]) - 1;
      }
      const shadeOfCause = p.causes.map((cause) => shades.push(this.colours[`idle-${cause.replace("_", "-")}`]) - 1);
      this.shades.set(p, { shadeOfKind, shadeOfCause, shades: Uint32Array.from(shades.map(packed)) });
    }
    return this.shades.get(p);
  }

  /** Draw the idle time of a rank: a shade and a pattern for each cause. Where there is room, its letter, or letter, name and time. */
  drawIdle(p, rank, top, height) {
    const { context: c, colours } = this;
    const bars = p.idleOf.of(rank);
    const { start, end, cause } = p.idle;
    const [first, stop] = this.range(bars, start, end, p.scale);
    c.textAlign = "center";
    c.textBaseline = "middle";
    for (let i = first; i < stop; i++) {
      const bar = bars[i];
      const from = Math.max(this.x(start[bar] / p.scale), MARGIN - 3);
      const to = Math.min(this.x(end[bar] / p.scale), this.width + 3);
      const name = p.causes[cause[bar]];
      c.fillStyle = colours[`idle-${name.replace("_", "-")}`];
      c.fillRect(from, top, to - from, height);
      if (to - from < 4) continue;
      c.fillStyle = pattern(c, CAUSE_PATTERNS[name], `${colours.dim}66`);
      c.fillRect(from, top, to - from, height);
      if (to - from < 14) continue;
      c.font = "600 11px system-ui, sans-serif";
      const words = `${CAUSES[name][0]} ${CAUSES[name][1]} ${time(p, end[bar] - start[bar])}`;
      const text = to - from > 7 * words.length ? words : CAUSES[name][0];
      const half = c.measureText(text).width / 2 + 3;
      c.fillStyle = colours[`idle-${name.replace("_", "-")}`];
      c.fillRect((from + to) / 2 - half, top + height / 2 - 8, 2 * half, 16);
      c.fillStyle = colours.text;
      c.fillText(text, (from + to) / 2, top + height / 2 + 0.5);
    }
    c.textAlign = "left";
  }

  /** Yield [row, x] of the signs of a rank in view. x: where the sign begins. Signs that would overlap are side by side. */
  *signs(p, rank) {
    const from = this.view.from * p.scale;
    const to = this.view.to * p.scale;
    const [low, high] = [p.offsets[rank], p.offsets[rank + 1]];
    let row = firstIndex(low, high, (i) => p.end[i] >= from);
    let last = -Infinity;
    for (; row < high && p.start[row] <= to; row++) {
      if (p.isTask[p.op[row]]) continue;
      const x = Math.max(this.x(p.start[row] / p.scale), last + SIGN);
      last = x;
      yield [row, x];
    }
  }

  /** Return the number of instructions of a rank in view, tasks included: at least the number of its signs. */
  countInView(p, rank) {
    const [low, high] = [p.offsets[rank], p.offsets[rank + 1]];
    const first = firstIndex(low, high, (i) => p.end[i] >= this.view.from * p.scale);
    return firstIndex(first, high, (i) => p.start[i] > this.view.to * p.scale) - first;
  }

  /** Return whether the signs of a rank are drawn: the program has not too many, and there is about enough room. */
  drawsSigns(p, rank) {
    const count = this.countInView(p, rank);
    return count * p.ranks <= MOST_SIGNS && count * SIGN < 1.5 * (this.width - MARGIN);
  }

  /** Draw the lane of the signs of a rank. All-reduces that take time are bars in it. */
  drawSigns(p, rank, top, height) {
    const { context: c, colours } = this;
    const middle = top + height / 2;
    for (const { ranks, start, end } of p.collectives) {
      if (end > start && ranks.includes(rank)) {
        c.fillStyle = pattern(c, "upright", colours.message);
        c.fillRect(this.x(start / p.scale), top + 1, this.x(end / p.scale) - this.x(start / p.scale), 10);
      }
    }
    if (!this.drawsSigns(p, rank)) return;
    c.strokeStyle = c.fillStyle = colours.message;
    c.lineWidth = 1.3;
    for (const [row, x] of this.signs(p, rank)) {
      const name = p.forms[p.op[row]].op;
      c.beginPath();
      if (name === "SEND" || name === "RECV") {
        const down = name === "RECV";
        c.moveTo(x + 1, middle + (down ? -3.5 : 3.5));
        c.lineTo(x + 9, middle + (down ? -3.5 : 3.5));
        c.lineTo(x + 5, middle + (down ? 4 : -4));
        c.closePath();
      } else if (name === "ALLREDUCE") {
        c.moveTo(x + 1, middle);
        c.lineTo(x + 5, middle - 4.5);
        c.lineTo(x + 9, middle);
        c.lineTo(x + 5, middle + 4.5);
        c.closePath();
      } else c.rect(x + 3, middle - 2, 4, 4);
      if (name === "RECV" || name === "FREE") c.stroke();
      else c.fill();
    }
  }

  /** Draw the memory of a rank as a curve. Of several values in one column of pixels, the least, the most and the last are drawn. */
  drawMemory(p, rank, top, height) {
    const { context: c, colours } = this;
    const { during, after } = p.memory;
    const [low, high] = [p.offsets[rank], p.offsets[rank + 1]];
    if (low === high || p.mostMemory === 0) return;
    const bottom = top + height;
    const y = (value) => bottom - (value / p.mostMemory) * (height - 2);
    const first = Math.max(low, firstIndex(low, high, (i) => p.end[i] > this.view.from * p.scale) - 1);
    const to = this.view.to * p.scale;
    let column = -1;
    let most = 0;
    let least = Infinity;
    let level = first === low ? 0 : after[first]; // the last value so far
    c.beginPath();
    c.moveTo(MARGIN, bottom);
    const flush = () => {
      if (column < 0) return;
      c.lineTo(column, y(least));
      c.lineTo(column, y(most));
      c.lineTo(column, y(level));
    };
    c.lineTo(MARGIN, y(level));
    const put = (x, value) => {
      x = Math.max(MARGIN, Math.min(this.width, Math.round(x)));
      if (x !== column) {
        flush();
        c.lineTo(x, y(level));
        column = x;
        most = value;
        least = value;
      }
      most = Math.max(most, value);
      least = Math.min(least, value);
      level = value;
    };
    for (let row = first; row < high && p.start[row] <= to; row++) {
      put(this.x(p.start[row] / p.scale), during[row]);
      put(this.x(p.end[row] / p.scale), after[row]);
    }
    flush();
    c.lineTo(Math.min(this.width, this.x(p.makespan / p.scale)), y(level));
    c.lineTo(Math.min(this.width, this.x(p.makespan / p.scale)), bottom);
    c.closePath();
    c.fillStyle = `${colours.memory}55`;
    c.fill();
    c.strokeStyle = colours.memory;
    c.lineWidth = 1;
    c.stroke();
  }

  /** Draw how much later than predicted each task ended: above the line later, below it earlier. */
  drawDifferences(p, rank, top, height) {
    const { context: c, colours } = this;
    const m = p.measured;
    const rows = p.tasks.of(rank);
    const [first, stop] = this.range(rows, m.start, m.end, p.scale);
    const zero = top + height / 2;
    c.strokeStyle = colours.line;
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(MARGIN, zero + 0.5);
    c.lineTo(this.width, zero + 0.5);
    c.stroke();
    if (!m.mostLate) return;
    for (let i = first; i < stop; i++) {
      const row = rows[i];
      const from = this.x(m.start[row] / p.scale);
      const width = Math.max(this.x(m.end[row] / p.scale) - from - 1, 0.7);
      const high = (m.late[row] / m.mostLate) * (height / 2);
      c.fillStyle = m.late[row] >= 0 ? colours.late : colours.early;
      c.fillRect(from, high >= 0 ? zero - high : zero, width, Math.abs(high));
    }
  }

  /** Return the y of the middle of the lane in which a row is drawn. */
  middle(state, p, row) {
    const found = state.layout.rows.find((r) => r.panel === p && r.rank === p.rankOf[row]);
    const lane = p.isTask[p.op[row]] || !found.lanes.signs ? found.lanes.tasks : found.lanes.signs;
    return lane[0] + lane[1] / 2 + this.offset;
  }

  /** Return the x at which a row starts, or with atEnd, at which it ends. For a sign that is drawn, these are its edges. */
  edge(p, row, atEnd) {
    if (!p.isTask[p.op[row]] && this.show.signs && this.drawsSigns(p, p.rankOf[row])) {
      for (const [sign, x] of this.signs(p, p.rankOf[row])) if (sign === row) return x + (atEnd ? 9 : 1);
    }
    return this.x((atEnd ? p.end : p.start)[row] / p.scale);
  }

  /** Draw a line for each message in view, dashed for gradients; none if there are too many. visible: the rows of the layout in view. */
  drawMessages(visible, state) {
    const { context: c, colours } = this;
    for (const p of new Set(visible.map((r) => r.panel))) {
      const { send, receive, leaves, arrives } = p.messages;
      const [from, to] = [this.view.from * p.scale, this.view.to * p.scale];
      const shown = [];
      for (let k = 0; k < send.length && shown.length <= MOST_MESSAGES; k++) {
        if (arrives[k] >= from && leaves[k] <= to) shown.push(k);
      }
      if (shown.length > MOST_MESSAGES) continue;
      const lanes = new Map(state.layout.rows.filter((r) => r.panel === p).map((r) => [r.rank, r.lanes.tasks])); // of tasks, by rank
      c.strokeStyle = colours.message;
      c.lineWidth = 1;
      for (const k of shown) {
        const [senderTop, senderHeight] = lanes.get(p.rankOf[send[k]]);
        const [receiverTop, receiverHeight] = lanes.get(p.rankOf[receive[k]]);
        const down = receiverTop > senderTop;
        const y0 = (down ? senderTop + senderHeight : senderTop) + this.offset;
        const y1 = (down ? receiverTop : receiverTop + receiverHeight) + this.offset;
        c.setLineDash(p.value[send[k]] ? [4, 3] : []);
        c.beginPath();
        c.moveTo(this.x(leaves[k] / p.scale), y0);
        c.lineTo(this.x(arrives[k] / p.scale), y1);
        c.stroke();
      }
      c.setLineDash([]);
    }
  }

  /** Draw the critical path: a band where it is in a task or an all-reduce, and lines where it goes from rank to rank. */
  drawPath(state) {
    const { context: c, colours } = this;
    for (const p of state.panels) {
      const lanes = new Map(state.layout.rows.filter((r) => r.panel === p).map((r) => [r.rank, r.lanes.tasks]));
      const { row, start, end, kind } = p.path;
      const first = firstIndex(0, row.length, (i) => end[i] >= this.view.from * p.scale);
      let before = null;
      c.strokeStyle = c.fillStyle = colours.path;
      c.lineWidth = 2;
      for (let i = Math.max(0, first - 1); i < row.length && start[i] <= this.view.to * p.scale; i++) {
        if (kind[i] === "message") continue;
        const lane = lanes.get(p.rankOf[row[i]]);
        const y = lane[0] + lane[1] - 4 + this.offset;
        const [x0, x1] = [this.x(start[i] / p.scale), this.x(end[i] / p.scale)];
        c.fillRect(x0, y, Math.max(x1 - x0 - 1, 1), 4);
        if (before && Math.abs(before[1] - y) > 1) {
          c.beginPath();
          c.moveTo(before[0], before[1] + 2);
          c.lineTo(x0, y + 2);
          c.stroke();
        }
        before = [x1, y];
      }
    }
  }

  /** Outline the moment of the explanation, dim what is after it, and number the idle slots up to its end if they are wide. */
  drawMoment(state) {
    const { context: c, colours } = this;
    const { panel: p, from, to } = state.explained;
    const rows = state.layout.rows.filter((r) => r.panel === p);
    if (p.slot > 0 && (p.slot / p.scale) * this.pixelsPerUnit >= 14) {
      c.textAlign = "center";
      c.textBaseline = "middle";
      c.font = "600 11px system-ui, sans-serif";
      for (const { rank, lanes } of rows) {
        const [top, height] = lanes.tasks;
        let count = 0;
        for (const bar of p.idleOf.of(rank)) {
          for (let t = p.idle.start[bar]; t < Math.min(p.idle.end[bar], to); t += p.slot) {
            count++;
            const x = this.x((t + p.slot / 2) / p.scale);
            if (x < MARGIN - 20 || x > this.width + 20) continue;
            const width = Math.min((p.slot / p.scale) * this.pixelsPerUnit - 4, 24);
            c.fillStyle = colours.back;
            c.fillRect(x - width / 2, top + height / 2 - 8 + this.offset, width, 16);
            c.strokeStyle = colours.text;
            c.lineWidth = 1;
            c.strokeRect(x - width / 2 + 0.5, top + height / 2 - 7.5 + this.offset, width - 1, 15);
            c.fillStyle = colours.text;
            c.fillText(String(count), x, top + height / 2 + 0.5 + this.offset);
          }
        }
      }
      c.textAlign = "left";
    }
    const top = rows[0].top + this.offset - 3;
    const bottom = rows.at(-1).top + rows.at(-1).height + this.offset + 3;
    const [x0, x1] = [this.x(from / p.scale), this.x(to / p.scale)];
    c.fillStyle = `${colours.back}c8`;
    c.fillRect(x1, top, Math.max(0, this.width - x1), bottom - top);
    c.strokeStyle = colours.select;
    c.lineWidth = 2;
    c.strokeRect(x0, top, Math.max(x1 - x0, 1), bottom - top);
  }

  /**
   * Outline the selected and the hovered instruction, and draw the arrows of the selected one's dependencies, or of the hovered one's if
   * none is selected.
   */
  drawChosen(state) {
    const { context: c, colours } = this;
    const chosen = [state.selected, state.hovered].filter((x) => x);
    for (const { panel: p, row } of chosen) {
      const isSelected = state.selected && state.selected.row === row && state.selected.panel === p;
      if (state.show.arrows && (isSelected || !state.selected)) this.drawArrows(state, p, row);
      const found = state.layout.rows.find((r) => r.panel === p && r.rank === p.rankOf[row]);
      const outline = (lane, times) => {
        const x = this.x(times.start[row] / p.scale);
        const width = Math.max(this.x(times.end[row] / p.scale) - x, 3);
        for (const [shade, inset, line] of [[colours.back, -2, 2], [colours.select, 0, isSelected ? 2.5 : 1.5]]) {
          c.strokeStyle = shade;
          c.lineWidth = line;
          c.strokeRect(x + inset, lane[0] + inset + this.offset, width - 2 * inset, lane[1] - 2 * inset);
        }
      };
      if (p.isTask[p.op[row]]) {
        outline(found.lanes.tasks, p);
        if (found.lanes.measured) outline(found.lanes.measured, p.measured);
      } else if (found.lanes.signs) {
        const x = this.edge(p, row, false) - 2;
        c.strokeStyle = colours.select;
        c.lineWidth = isSelected ? 2.5 : 1.5;
        c.strokeRect(x, found.lanes.signs[0] + this.offset, 12, found.lanes.signs[1]);
      }
    }
  }

  /** Draw arrows from what a row waits for, and dashed ones to what waits for it. */
  drawArrows(state, p, row) {
    const { colours } = this;
    const middle = (x) => this.middle(state, p, x);
    for (const wait of waitsFor(p, row)) {
      arrow(this.context, this.edge(p, wait.row, true), middle(wait.row), this.edge(p, row, false), middle(row), colours.in, false);
    }
    if (p.forms[p.op[row]].op === "ALLREDUCE") return; // the same members wait for it
    for (const wait of waitedForBy(p, row)) {
      arrow(this.context, this.edge(p, row, true), middle(row), this.edge(p, wait.row, false), middle(wait.row), colours.out, true);
    }
  }

  drawTitles(state) {
    const { context: c, colours } = this;
    for (const { panel: p, top } of state.layout.titles) {
      c.fillStyle = colours.text;
      c.font = "600 13px system-ui, sans-serif";
      c.textBaseline = "middle";
      c.fillText(`${titleOf(p)}: makespan ${withUnit(p, p.makespan)}`, 8, top + 13 + this.offset);
    }
  }

  /**
   * Return what is at a point of the canvas: {panel, rank, row, bar}; null outside the lanes. row: the instruction, in the lane of memory
   * the task at this time; bar: the idle bar; each is -1 for none.
   */
  at(state, x, y) {
    const found = state.layout.rows.find((r) => y - this.offset >= r.top - 3 && y - this.offset <= r.top + r.height + 3);
    if (!found || x < MARGIN) return null;
    const { panel: p, rank, lanes } = found;
    const inside = (lane) => lane && y - this.offset >= lane[0] && y - this.offset <= lane[0] + lane[1];
    if (inside(lanes.signs) && this.drawsSigns(p, rank)) {
      for (const [row, left] of this.signs(p, rank)) if (x >= left - 1 && x <= left + 10) return { panel: p, rank, row, bar: -1 };
      return { panel: p, rank, row: -1, bar: -1 };
    }
    const at = this.timeAt(x) * p.scale;
    if (inside(lanes.measured) || inside(lanes.differences)) {
      const rows = p.tasks.of(rank);
      const k = firstIndex(0, rows.length, (i) => p.measured.end[rows[i]] > at);
      return { panel: p, rank, row: k < rows.length && p.measured.start[rows[k]] <= at ? rows[k] : -1, bar: -1 };
    }
    return { panel: p, rank, row: taskAt(p, rank, at), bar: inside(lanes.tasks) ? idleAt(p, rank, at) : -1 };
  }
}

/** Return the name of a program with its parameters. */
function titleOf(p) {
  const given = Object.entries(p.parameters).map(([name, value]) => `${name}=${value}`);
  return [p.name, ...given].join(" ");
}
