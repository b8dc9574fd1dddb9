// Elements made by hand. Text goes in as text, never as markup; drawings are images, in which nothing runs.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (`on…` are listeners) and children: nodes, or values shown as text. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for parts of a drawing. */
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

/** Replaces all that is in an element. */
export function show(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter(Boolean));
  return node;
}

/** A drawing of a position, or its text where there is none. */
export function picture(svg, words) {
  if (!svg) return words ? el("pre", {}, words) : el("span");
  return el("img", { alt: words || "drawing", src: "data:image/svg+xml;charset=utf-8," + encodeURIComponent(wellFormed(svg)) });
}

function wellFormed(text) { // half of a surrogate pair cannot be encoded
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}

/** Something that is folded away; its contents are made when it is opened. */
export function folded(words, make, open = false) {
  const box = el("details", {}, el("summary", {}, words));
  let made = false;
  const unfold = () => { if (box.open && !made) { made = true; box.append(make()); } };
  box.addEventListener("toggle", unfold);
  box.open = open;
  unfold();
  return box;
}

/** A choice: options are [value, words]. */
export function select(label, options, value, onchange) {
  const box = el("select", { "aria-label": label, onchange: () => onchange(box.value) },
    options.map(([v, words]) => el("option", { value: v, selected: v === value }, words)));
  return el("label", {}, label, " ", box);
}

/** A number with about three digits. */
export function number(x) {
  if (typeof x !== "number") return "–";
  if (x !== 0 && (Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3)) return x.toExponential(1);
  return String(Number(x.toPrecision(4)));
}

/** A reward with its sign. */
export const signed = (x) => (x > 0 ? "+" : "") + number(x);

export const words = (name) => name.replaceAll("_", " ");
