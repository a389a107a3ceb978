// The data of the page: columns of numbers become typed arrays, and the relations of instructions can be looked up by row.

/** What page.py wrote into the page: {command, parameters, colours, words, embedded, panels}. */
const PAGE = JSON.parse(document.getElementById("data").textContent);

/** Return the typed array of a column of columns.py. */
function decode(column) {
  const types = { Uint8Array, Int16Array, Int32Array, Float64Array };
  const text = atob(column.bytes);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new types[column.type](bytes.buffer);
}

/**
 * Return the lists of values that have the same key, as {of, all}. keys, values: columns of equal length; the keys are from 0 to
 * n - 1; values null: the values are the indices of the keys. of(key): the list of a key, in the order of the columns; all: the
 * lists of all keys, one after another.
 */
function grouped(n, keys, values) {
  const first = new Int32Array(n + 1);
  for (const key of keys) first[key + 1]++;
  for (let k = 0; k < n; k++) first[k + 1] += first[k];
  const at = first.slice(0, n);
  const lists = new Int32Array(keys.length);
  for (let i = 0; i < keys.length; i++) lists[at[keys[i]]++] = values === null ? i : values[i];
  return { of: (key) => lists.subarray(first[key], first[key + 1]), all: lists };
}

/** Return the first index from `low` to `high` - 1 for which `holds` is true, else `high`. After it, `holds` must stay true. */
function firstIndex(low, high, holds) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/**
 * Return a program of the page with its columns decoded, and with what can be looked up by row, rank or message. Times stay
 * integers; `scale` of them make one unit. raw: what compiler/analyze/viewed.py returns. number: the index of the program among
 * those that are drawn.
 */
function readPanel(raw, number) {
  const p = { ...raw, number };
  for (const name of ["offsets", "op", "value", "pipe", "stage", "operand", "peer", "flags", "start", "end"]) {
    p[name] = decode(raw[name]);
  }
  for (const name of ["edges", "messages", "values", "idle"]) {
    p[name] = Object.fromEntries(Object.entries(raw[name]).map(([key, column]) => [key, decode(column)]));
  }
  p.path = { kind: raw.path.kind, row: decode(raw.path.row), start: decode(raw.path.start), end: decode(raw.path.end) };
  p.memory = { unit: raw.memory.unit, during: decode(raw.memory.during), after: decode(raw.memory.after) };
  p.text = raw.text && { ...raw.text, of: decode(raw.text.of) };
  p.size = p.op.length;
  p.rankOf = new Int32Array(p.size);
  for (let rank = 0; rank < p.ranks; rank++) p.rankOf.fill(rank, p.offsets[rank], p.offsets[rank + 1]);
  p.isTask = p.forms.map((form) => form.letter !== "");
  const tasks = [];
  for (let row = 0; row < p.size; row++) if (p.isTask[p.op[row]]) tasks.push(row);
  p.tasks = grouped(p.ranks, tasks.map((row) => p.rankOf[row]), tasks); // of a rank: the rows of its tasks
  p.idleOf = grouped(p.ranks, p.idle.rank, null); // of a rank: the indices of its idle bars
  p.sources = grouped(p.size, p.edges.target, p.edges.source); // of a task: the tasks that it waits for
  p.targets = grouped(p.size, p.edges.source, p.edges.target); // of a task: the tasks that wait for it
  p.messageAt = new Int32Array(p.size).fill(-1); // the message of a SEND or RECV; -1 if one of its two ends is not drawn
  p.messages.send.forEach((row, message) => (p.messageAt[row] = message));
  p.messages.receive.forEach((row, message) => (p.messageAt[row] = message));
  p.consumed = grouped(p.size, p.values.consumer, p.values.message); // of a task: the messages with values that it reads first
  // Of a message: for each of its values the task that reads it first.
  p.consumers = grouped(p.messages.send.length, p.values.message, p.values.consumer);
  p.pathPartOf = new Map(); // of a row: its index in the critical path
  p.path.row.forEach((row, part) => p.pathPartOf.set(row, part));
  const members = [];
  const joined = [];
  for (let row = 0; row < p.size; row++) {
    if (p.forms[p.op[row]].op === "ALLREDUCE") {
      members.push(row);
      joined.push(p.operand[row]);
    }
  }
  p.members = grouped(p.collectives.length, joined, members); // of a collective: the ALLREDUCE of each rank
  p.mostMemory = p.memory.during.reduce((most, amount) => Math.max(most, amount), 0);
  if (raw.measured) p.measured = readMeasured(p, raw.measured);
  p.last = p.until ?? p.makespan; // the last predicted time that is drawn
  p.total = Math.max(p.last, p.measured ? p.measured.makespan : 0, 1) / p.scale; // the length of the time axis, in units
  return p;
}

/**
 * Return the measured bars. ownStart, ownEnd: in the integers of the measurement; start, end, makespan: in the unit of the panel's
 * integer times, but not rounded; late: how much later than predicted each row ended, in this unit, below 0 if it ended earlier;
 * mostLate: the greatest such difference of a task, later or earlier.
 */
function readMeasured(p, raw) {
  const m = { ...raw, ownStart: decode(raw.start), ownEnd: decode(raw.end), mostLate: 0 };
  m.makespan = raw.makespan * raw.factor;
  m.start = Float64Array.from(m.ownStart, (time) => time * raw.factor);
  m.end = Float64Array.from(m.ownEnd, (time) => time * raw.factor);
  m.late = m.end.map((end, row) => end - p.end[row]);
  for (let row = 0; row < p.size; row++) {
    if (p.isTask[p.op[row]]) m.mostLate = Math.max(m.mostLate, Math.abs(m.late[row]));
  }
  return m;
}

/**
 * Return what an instruction waits for, as [{row, time, message}]. row: the instruction that it waits for; time: the end of that one,
 * or when its message arrives, in integers; message: the index of this message, -1 if no message is waited for. The instruction before
 * it in its stream is not listed as such, nor is what a SEND waits for if its window is full.
 */
function waitsFor(p, row) {
  const name = p.forms[p.op[row]].op;
  const message = p.messageAt[row];
  if (name === "SEND") {
    return producersOf(p, row).map((producer) => ({ row: producer, time: p.end[producer], message: -1 }));
  }
  if (name === "RECV") {
    const { send, arrives } = p.messages;
    return message < 0 ? [] : [{ row: send[message], time: arrives[message], message }];
  }
  if (name === "ALLREDUCE") {
    return [...p.members.of(p.operand[row])].filter((x) => x !== row).map((x) => ({ row: x, time: p.end[x], message: -1 }));
  }
  const messages = [...p.consumed.of(row)];
  const sources = [...new Set(p.sources.of(row))];
  const { arrives } = p.messages;
  return sources.map((source) => {
    const found = p.rankOf[source] === p.rankOf[row] ? [] : messages.filter((k) => carries(p, source, k));
    const last = found.reduce((a, b) => (a < 0 || arrives[b] > arrives[a] ? b : a), -1); // of the messages with its values
    return { row: source, time: last < 0 ? p.end[source] : arrives[last], message: last };
  });
}

/**
 * Return what waits for an instruction, as [{row, time, message}]: the tasks that wait for a task (its SENDs are not listed), the RECV of
 * a SEND, or the tasks that read the message of a RECV. row: an instruction that waits; time: when that one starts, or, for a RECV, when
 * its message arrives; message: as in waitsFor. For an ALLREDUCE, return what waitsFor returns: the other members.
 */
function waitedForBy(p, row) {
  const message = p.messageAt[row];
  const name = p.forms[p.op[row]].op;
  if (name === "SEND" && message >= 0) {
    const { receive, arrives } = p.messages;
    return [{ row: receive[message], time: arrives[message], message }];
  }
  if (name === "RECV" && message >= 0) {
    return [...p.consumers.of(message)].map((x) => ({ row: x, time: p.start[x], message }));
  }
  if (name === "ALLREDUCE") return waitsFor(p, row);
  return [...new Set(p.targets.of(row))].map((target) => ({
    row: target,
    time: p.start[target],
    message: waitsFor(p, target).find((wait) => wait.row === row)?.message ?? -1,
  }));
}

/** Return whether message k leaves the rank of a task and carries one of the task's micro-batches. */
function carries(p, task, k) {
  const send = p.messages.send[k];
  if (p.rankOf[send] !== p.rankOf[task]) return false;
  const ids = microBatches(p, task);
  return microBatches(p, send).some((id) => ids.includes(id));
}

/** Return the tasks whose values a SEND sends; none if the RECV or each reader of the message is not drawn. */
function producersOf(p, row) {
  const message = p.messageAt[row];
  if (message < 0) return [];
  const sources = [...p.consumers.of(message)].flatMap((consumer) => [...p.sources.of(consumer)]);
  return [...new Set(sources)].filter((source) => carries(p, source, message));
}

/** Return the micro-batches of a row; none for an ALLREDUCE. */
function microBatches(p, row) {
  if (!p.forms[p.op[row]].fields.includes("micro_batches")) return [];
  const list = p.operand[row]; // a micro-batch; from p.microBatches on, a group of them
  return list < p.microBatches ? [list] : p.groups[list - p.microBatches];
}

/** Return the task of a rank that runs at a time, -1 for none. */
function taskAt(p, rank, time) {
  const tasks = p.tasks.of(rank);
  const at = firstIndex(0, tasks.length, (i) => p.end[tasks[i]] > time);
  return at < tasks.length && p.start[tasks[at]] <= time ? tasks[at] : -1;
}

/** Return the index of the idle bar of a rank at a time, -1 for none. */
function idleAt(p, rank, time) {
  const bars = p.idleOf.of(rank);
  const at = firstIndex(0, bars.length, (i) => p.idle.end[bars[i]] > time);
  return at < bars.length && p.idle.start[bars[at]] <= time ? bars[at] : -1;
}
