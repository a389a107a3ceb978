// Texts about instructions, times, waits, idle time and memory.
// p: a program, as readPanel of data.js returns it. row: an instruction, by its index in the columns of its program.

const WORDS = PAGE.words; // what each kind of task is called, by its letter
// By the causes of idle time of compiler/analyze/causes.py: letter in the drawing, name, and what the rank waits for.
const CAUSES = {
  fill: ["S", "start-up", "its first task waits for a value that another rank has not sent yet"],
  value: ["V", "waiting for a value", "the next task waits for a value that another rank has not sent yet"],
  transfer: ["T", "message on its way", "the value that the next task waits for is sent and on its way"],
  window: ["Q", "full window", "a SEND waits for a message of its channel: an earlier one, or its own if no SEND may be incomplete"],
  all_reduce: ["A", "all-reduce", "the tasks are done and an all-reduce of gradients is running"],
  drain: ["D", "drain", "the tasks are done and other ranks still work"],
};

// Bits of `flags` (chimera_ir/table.py).
const RECOMPUTE = 1;
const OVERLAP = 2;

/** Return a number as text: an integer below 10^9 as it is, others with four significant digits, or seven from 1000 on. */
function number(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  return String(Number(value.toPrecision(Math.abs(value) >= 1000 ? 7 : 4)));
}

/** Return a time of a panel, an integer, as a number in the panel's unit. The name of the unit is left out. */
function time(p, integer) {
  return number(integer / p.scale);
}

function withUnit(p, integer) {
  return p.unit ? `${time(p, integer)} ${p.unit}` : time(p, integer);
}

/** Return the label of a task: 'F3'; 'F0-3' for a group; with the stage, as 'F3.5', if ranks have several stages of a pipe. */
function label(p, row) {
  const letter = p.forms[p.op[row]].letter;
  return letter + idsText(microBatches(p, row)) + (p.severalStages ? `.${p.stage[row]}` : "");
}

/** Return ids as text, such as '3', '0-3' or '0,2,5-7'. After three parts, '...' stands for the rest. */
function idsText(ids) {
  const parts = [];
  for (let i = 0; i < ids.length; ) {
    let end = i + 1;
    while (end < ids.length && ids[end] === ids[end - 1] + 1) end++;
    if (parts.length === 3) return `${parts.join(",")},...`;
    parts.push(end === i + 1 ? String(ids[i]) : `${ids[i]}-${ids[end - 1]}`);
    i = end;
  }
  return parts.join(",");
}

/** Return the text of an instruction, as `chimerac --emit streams` writes it. */
function instructionText(p, row) {
  const form = p.forms[p.op[row]];
  const collective = form.fields.includes("ranks") ? p.collectives[p.operand[row]] : null;
  const words = {
    value: () => ["act", "grad"][p.value[row]],
    group: () => (collective.group === `stage ${collective.stage}` ? "" : collective.group),
    pipe: () => p.pipes[p.pipe[row]].name,
    stage: () => `s${collective ? collective.stage : p.stage[row]}`,
    micro_batches: () => `m${microBatches(p, row).join(",")}`,
    peer: () => `${form.arrow} ${p.peer[row]}`,
    ranks: () => `over ${collective.ranks.join(",")}`,
    recompute: () => (p.flags[row] & RECOMPUTE ? "recompute" : ""),
    overlap: () => (p.flags[row] & OVERLAP ? "overlap" : ""),
  };
  return [form.op, ...form.fields.map((field) => words[field]())].filter((word) => word).join(" ");
}

/** Return what an instruction does, in words. */
function inWords(p, row) {
  const form = p.forms[p.op[row]];
  const ids = microBatches(p, row);
  const named = `${ids.length > 1 ? "micro-batches" : "micro-batch"} ${idsText(ids)}`;
  if (form.letter) return `${WORDS[form.letter]} of ${named} on stage ${p.stage[row]}`;
  if (form.op === "ALLREDUCE") {
    const { group, ranks } = p.collectives[p.operand[row]];
    return `starts to sum the gradients of ${group} over ranks ${idsText(ranks)}`;
  }
  const value = `${p.value[row] ? "gradient" : "activation"} of ${named} for stage ${p.stage[row]}`;
  if (form.op === "SEND") return `sends the ${value} to rank ${p.peer[row]}`;
  if (form.op === "RECV") return `posts the receive of the ${value} from rank ${p.peer[row]}`;
  return `frees the received ${value}`;
}

/** Return a short name of a row for sentences: 'F3 on rank 1' or 'SEND of rank 1'. */
function nameOf(p, row) {
  const form = p.forms[p.op[row]];
  return form.letter ? `${label(p, row)} on rank ${p.rankOf[row]}` : `${form.op} of rank ${p.rankOf[row]}`;
}

/** Return the line of the schedule that placed a row: 'line 23: F(s, m) at ...'; '' where it is not known. */
function lineText(p, row) {
  const line = p.text && p.text.of[row] >= 0 ? p.text.lines[p.text.of[row]] : null;
  return line ? `line ${line[0]}: ${line[1]}` : "";
}

/** Return the place of a row in its stream: 'rank 0, instruction 12'. */
function placeText(p, row) {
  const rank = p.rankOf[row];
  return `rank ${rank}, instruction ${row - p.offsets[rank]}`;
}

/** Return when a row is predicted to start and to end. */
function timesText(p, row) {
  return p.end[row] > p.start[row]
    ? `${time(p, p.start[row])} to ${withUnit(p, p.end[row])}, takes ${time(p, p.end[row] - p.start[row])}`
    : `at ${withUnit(p, p.start[row])}`;
}

/** Return the measured times of a row, in the measured unit, and how they differ from the predicted ones. */
function measuredText(p, row) {
  const m = p.measured;
  const text = (integer) => number(integer / m.scale);
  const unit = m.unit ? ` ${m.unit}` : "";
  const taken = m.ownEnd[row] - m.ownStart[row];
  const predicted = (p.end[row] - p.start[row]) / m.factor;
  const late = m.late[row] / m.factor;
  const longer = signed(number((taken - predicted) / m.scale));
  return `${text(m.ownStart[row])} to ${text(m.ownEnd[row])}${unit}, takes ${text(taken)} (${longer}); ends ${
    late < 0 ? `${text(-late)}${unit} earlier` : `${text(late)}${unit} later`
  } than predicted`;
}

function signed(text) {
  return text.startsWith("-") ? text : `+${text}`;
}

/**
 * Return {row, text} for each instruction that a row waits for. The text says whether this wait decides the row's start, or that of its
 * overlapped pair.
 */
function waitSentences(p, row) {
  const waits = waitsFor(p, row);
  const isSecond = row > p.offsets[p.rankOf[row]] && p.flags[row - 1] & OVERLAP;
  const start = p.start[isSecond ? row - 1 : row]; // the tasks of a pair start together, and are drawn one after the other
  const last = Math.max(...waits.map((wait) => wait.time));
  return waits.map((wait) => {
    const when = wait.message >= 0 ? `, arrives at ${time(p, wait.time)}` : `, ends at ${time(p, wait.time)}`;
    const decides = wait.time === last && wait.time === start && start > 0 ? " (decides the start)" : "";
    return { row: wait.row, text: `${nameOf(p, wait.row)}${when}${decides}` };
  });
}

/** Return the idle time of the rank right before a row, with its causes; '' if there is none. */
function idleBefore(p, row) {
  if (p.start[row] === 0) return "";
  const rank = p.rankOf[row];
  const previous = row > p.offsets[rank] ? p.end[row - 1] : 0;
  if (p.start[row] <= previous) return "";
  const bars = [...p.idleOf.of(rank)].filter((bar) => p.idle.start[bar] >= previous && p.idle.end[bar] <= p.start[row]);
  const parts = bars.map((bar) => `${causeOf(p, bar)[1]} ${time(p, p.idle.end[bar] - p.idle.start[bar])}`);
  return `${withUnit(p, p.start[row] - previous)}: ${parts.join(", ")}`;
}

/** Return [letter, name, what it means] of the cause of an idle bar. */
function causeOf(p, bar) {
  return CAUSES[p.causes[p.idle.cause[bar]]];
}

/** Return an amount of memory: bytes with a binary unit, or a number of activations. */
function amount(p, value) {
  if (p.memory.unit !== "bytes") return `${value} ${value === 1 ? "activation" : "activations"}`;
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  for (let rest = value; rest >= 1024 && power < units.length - 1; rest /= 1024) power++;
  return `${power ? (value / 1024 ** power).toFixed(value / 1024 ** power >= 100 ? 0 : 1) : value} ${units[power]}`;
}

/**
 * Return a sentence for screen readers: a row's text, place and times, the idle time before it, the wait that decides its start, and
 * its measured times.
 */
function spoken(p, row) {
  const parts = [`${instructionText(p, row)}, ${placeText(p, row)}, ${timesText(p, row)}`];
  const idle = idleBefore(p, row);
  if (idle) parts.push(`the rank was idle before it for ${idle}`);
  const waits = waitSentences(p, row).filter((wait) => wait.text.endsWith("(decides the start)"));
  if (waits.length) parts.push(`it waited for ${waits[0].text.replace(" (decides the start)", "")}`);
  if (p.measured) parts.push(`measured ${measuredText(p, row)}`);
  return `${parts.join("; ")}.`;
}
