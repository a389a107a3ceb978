// Colours, patterns and shapes on a canvas.

// What page_colours of compiler/draw/shades.py returns.
const { shades: SHADES, texts: TEXTS, lines: LINES } = PAGE.colours;
// Patterns over the tasks of each pipe, and over idle time by its cause.
const PIPE_PATTERNS = ["none", "rising", "dots", "falling", "crossed"];
const CAUSE_PATTERNS = {
  fill: "rising",
  value: "dots",
  transfer: "level",
  window: "crossed",
  all_reduce: "upright",
  drain: "falling",
};

// The colours that viewer.css defines for drawings. in, out: of arrows from what an instruction waits for, and to what waits for it.
const COLOUR_NAMES = [
  "back", "lane", "line", "text", "dim", "accent", "path", "in", "out", "select", "late", "early", "memory", "message",
  ...Object.keys(CAUSE_PATTERNS).map((cause) => `idle-${cause.replace("_", "-")}`),
];

/** Return the colours of the page's style, by name. */
function themeColours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(COLOUR_NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const patterns = new Map();

/** Return a pattern as a fill style of a canvas. kind: a value of PIPE_PATTERNS or CAUSE_PATTERNS, except "none". */
function pattern(context, kind, colour) {
  const key = `${kind} ${colour}`;
  if (!patterns.has(key)) {
    const size = 8;
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const c = tile.getContext("2d");
    c.strokeStyle = c.fillStyle = colour;
    c.lineWidth = 1;
    const draw = (points) => {
      c.beginPath();
      for (const [x0, y0, x1, y1] of points) {
        c.moveTo(x0, y0);
        c.lineTo(x1, y1);
      }
      c.stroke();
    };
    const rising = [[-2, 2, 2, -2], [0, size, size, 0], [size - 2, size + 2, size + 2, size - 2]];
    const falling = rising.map(([x0, y0, x1, y1]) => [size - x0, y0, size - x1, y1]);
    if (kind === "rising" || kind === "crossed") draw(rising);
    if (kind === "falling" || kind === "crossed") draw(falling);
    if (kind === "level") draw([[0, 2.5, size, 2.5], [0, 6.5, size, 6.5]]);
    if (kind === "upright") draw([[2.5, 0, 2.5, size], [6.5, 0, 6.5, size]]);
    if (kind === "dots") {
      c.fillRect(1, 1, 1.5, 1.5);
      c.fillRect(5, 5, 1.5, 1.5);
    }
    patterns.set(key, context.createPattern(tile, "repeat"));
  }
  return patterns.get(key);
}

/** Return a colour '#rrggbb' as the number of an opaque pixel of an image: red is its lowest byte. */
function packed(colour) {
  const value = parseInt(colour.slice(1), 16);
  return ((255 << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** Draw an arrow from one point to another. */
function arrow(c, x0, y0, x1, y1, colour, dashed) {
  const angle = Math.atan2(y1 - y0, x1 - x0);
  c.save();
  c.lineWidth = 2;
  c.strokeStyle = c.fillStyle = colour;
  c.setLineDash(dashed ? [5, 3] : []);
  c.beginPath();
  c.moveTo(x0, y0);
  c.lineTo(x1 - 5 * Math.cos(angle), y1 - 5 * Math.sin(angle));
  c.stroke();
  c.setLineDash([]);
  c.beginPath();
  c.moveTo(x1, y1);
  for (const side of [-1, 1]) c.lineTo(x1 - 9 * Math.cos(angle + side * 0.45), y1 - 9 * Math.sin(angle + side * 0.45));
  c.fill();
  c.restore();
}

/** Return the time between two marks of an axis: 1, 2 or 5 times a power of ten, at least `pixels` wide. perPixel: time of a pixel. */
function markDistance(perPixel, pixels) {
  const least = perPixel * pixels;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((x) => x * power).find((x) => x >= least * 0.9999);
}
