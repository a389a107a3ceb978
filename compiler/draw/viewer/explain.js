// What a bubble is: one schedule explained moment by moment, with sentences about ranks, and the idle slots of each rank counted.

const MOST_SENTENCES = 16; // about one moment; each is about one rank

/**
 * Return 0, the times at which a task of a panel starts or ends, and the last time that is drawn: ascending, each once. Times after the
 * last that is drawn are left out.
 */
function momentsOf(p) {
  const times = new Float64Array(2 * p.tasks.all.length + 2); // one of them stays 0
  p.tasks.all.forEach((row, i) => {
    times[2 * i] = p.start[row];
    times[2 * i + 1] = p.end[row];
  });
  times[times.length - 1] = p.last;
  return times.sort().filter((value, i) => (i === 0 || value !== times[i - 1]) && value <= p.last);
}

/** Return what a rank does from a time on, as a sentence. */
function sentence(p, rank, from) {
  const row = taskAt(p, rank, from);
  if (row >= 0) return `Rank ${rank} runs ${label(p, row)}, the ${inWords(p, row)}.`;
  const bar = idleAt(p, rank, from);
  if (bar < 0) return `Rank ${rank} has nothing to do.`;
  return `Rank ${rank} is idle (${causeOf(p, bar)[1]}): ${reason(p, rank, bar, from)}.`;
}

/** Return why a rank is idle from a time on. bar: its idle bar. */
function reason(p, rank, bar, from) {
  const cause = p.causes[p.idle.cause[bar]];
  if (cause === "drain") return `its tasks are done; the iteration ends at ${time(p, p.makespan)}, with the last rank`;
  if (cause === "all_reduce") {
    const running = p.collectives.find((c) => c.ranks.includes(rank) && c.start <= from && c.end > from);
    const which = running ? ` of ${running.group} over ranks ${idsText(running.ranks)}` : "";
    return `its tasks are done; the all-reduce${which} runs until ${time(p, p.idle.end[bar])}`;
  }
  if (cause === "window") return "it waits for a message that it sends: no more SENDs of this channel may be incomplete";
  const tasks = p.tasks.of(rank);
  const next = tasks[firstIndex(0, tasks.length, (i) => p.start[tasks[i]] >= p.idle.end[bar])];
  if (next === undefined) return "it waits for other ranks";
  // The tasks of an overlapped pair start together. The second may be the one that waits, and it may not be drawn.
  const pair = p.flags[next] & OVERLAP && next + 1 < p.offsets[rank + 1] ? [next, next + 1] : [next];
  const waits = pair.flatMap((task) => waitsFor(p, task).map((wait) => ({ ...wait, task })));
  const last = waits.reduce((a, b) => (b.time > a.time ? b : a), { time: -1, row: -1 });
  if (last.row < 0) return `${label(p, next)} cannot start yet`;
  const together = last.task === next ? "" : `${label(p, next)} starts together with ${label(p, last.task)}, and `;
  const needed = `${together}${label(p, last.task)} needs ${label(p, last.row)} of rank ${p.rankOf[last.row]}`;
  if (p.end[last.row] <= from) return `${needed}, whose message arrives at ${time(p, last.time)}`;
  if (p.start[last.row] <= from) return `${needed}, which runs until ${time(p, p.end[last.row])}`;
  return `${needed}, which runs only from ${time(p, p.start[last.row])} to ${time(p, p.end[last.row])}`;
}

/** Return the idle time of a rank up to a time. */
function idleUntil(p, rank, until) {
  let sum = 0;
  for (const bar of p.idleOf.of(rank)) sum += Math.max(0, Math.min(p.idle.end[bar], until) - p.idle.start[bar]);
  return sum;
}

/** Return idle time as a number of slots, or with its unit if it is not counted in slots. */
function counted(p, idle) {
  if (!countsSlots(p)) return withUnit(p, idle);
  const slots = Math.round(idle / p.slot);
  return `${slots} idle ${slots === 1 ? "slot" : "slots"}`;
}

/**
 * Return whether idle time is counted in slots: whether at most 1000 of them make the makespan. A slot is the longest time that
 * divides the start and the end of every task.
 */
function countsSlots(p) {
  return p.slot > 0 && p.makespan / p.slot <= 1000;
}

/**
 * Return what is said about moment k, from moments[k] to moments[k + 1]. head: its times, and how many ranks are idle; idle: these
 * ranks; sentences: {rank, text}, for MOST_SENTENCES ranks at most; more: how many ranks have no sentence; counts: the idle time of
 * each rank up to the end of the moment.
 */
function describeMoment(p, moments, k) {
  const [from, to] = [moments[k], moments[k + 1]];
  const ranks = Array.from({ length: p.ranks }, (_, rank) => rank);
  const idle = ranks.filter((rank) => taskAt(p, rank, from) < 0);
  // Of many ranks the idle ones come first, since the explanation is about them.
  const ordered = p.ranks > MOST_SENTENCES ? [...idle, ...ranks.filter((rank) => !idle.includes(rank))] : ranks;
  const sentences = ordered.slice(0, MOST_SENTENCES).map((rank) => ({ rank, text: sentence(p, rank, from) }));
  const who = idle.length === 0 ? "All ranks work." : `${idle.length} of ${p.ranks} ranks ${idle.length === 1 ? "is" : "are"} idle.`;
  return {
    head: `Time ${time(p, from)} to ${withUnit(p, to)}. ${who}`,
    idle: new Set(idle),
    sentences,
    more: p.ranks - sentences.length,
    counts: ranks.map((rank) => counted(p, idleUntil(p, rank, to))),
  };
}

/**
 * Return the idle time of all ranks together, also by cause, as sentences. If only a part of the program is drawn, they say only when
 * the iteration ends.
 */
function summary(p) {
  if (p.until !== null) return `The iteration ends at ${withUnit(p, p.makespan)}; the rest of it is not drawn.`;
  const sums = p.causes.map(() => 0);
  for (let bar = 0; bar < p.idle.rank.length; bar++) sums[p.idle.cause[bar]] += p.idle.end[bar] - p.idle.start[bar];
  const total = sums.reduce((a, b) => a + b, 0);
  const whole = p.ranks * p.makespan;
  const parts = p.causes.flatMap((cause, k) => (sums[k] ? [`${CAUSES[cause][1]} ${slotsOrTime(p, sums[k])}`] : []));
  if (!total) return "No rank is ever idle.";
  const share = ((100 * total) / whole).toFixed(1);
  return `In all: ${counted(p, total)} of ${slotsOrTime(p, whole)}, which is ${share} %. By cause: ${parts.join(", ")}.`;
}

/** Return a time as a number of slots if idle time is counted in slots, else with its unit. */
function slotsOrTime(p, integer) {
  return countsSlots(p) ? String(Math.round(integer / p.slot)) : withUnit(p, integer);
}
