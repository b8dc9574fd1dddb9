// DOM helpers. Text is inserted as text, never as markup. Drawings are images, in which no scripts run.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element with attributes (`on…` are listeners) and children: nodes, or values shown as text. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false)
    .map((c) => (c instanceof Node ? c : document.createTextNode(String(c)))));
  return node;
}

/** Replace the children of an element. */
export function show(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter(Boolean));
  return node;
}

/** Show the drawing of a position, or its text if there is none. */
export function picture(svg, words) {
  if (!svg) return words ? el("pre", {}, words) : el("span");
  return el("img", { alt: words || "drawing", src: "data:image/svg+xml;charset=utf-8," + encodeURIComponent(wellFormed(svg)) });
}

function wellFormed(text) { // lone surrogates cannot be encoded
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}

/** Create the picture that a model saw in its prompt, a data URI of a PNG file, or nothing. */
export function seen(uri) {
  return uri?.startsWith("data:image/png;base64,") ? el("img", { src: uri, alt: "picture in the prompt" }) : null;
}

/** Create a folded element whose contents are created when it is opened. */
export function folded(words, make, open = false) {
  const box = el("details", {}, el("summary", {}, words));
  let made = false;
  const unfold = () => { if (box.open && !made) { made = true; box.append(make()); } };
  box.addEventListener("toggle", unfold);
  box.open = open;
  unfold();
  return box;
}

/** Create a select box from options [value, words]. */
export function select(label, options, value, onchange) {
  const box = el("select", { "aria-label": label, onchange: () => onchange(box.value) },
    options.map(([v, words]) => el("option", { value: v, selected: v === value }, words)));
  return el("label", {}, label, " ", box);
}

/** Format a number with at most four digits. */
export function number(x) {
  if (typeof x !== "number") return "–";
  if (x !== 0 && (Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3)) return x.toExponential(1);
  return String(Number(x.toPrecision(4)));
}

/** Format a reward with its sign. */
export const signed = (x) => (x > 0 ? "+" : "") + number(x);

export const words = (name) => name.replaceAll("_", " ");
