// Elements of the page. Whatever a daemon or a model sends becomes text, never markup.

export function byId(id) {
  return document.getElementById(id);
}

/** Return a new element with classes and text. */
export function made(name, classes = "", text = "") {
  const element = document.createElement(name);
  if (classes) {
    element.className = classes;
  }
  element.textContent = text;
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** Return a new element of a drawing. */
export function drawn(name, attributes, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, value);
  }
  element.textContent = text;
  return element;
}

export function percent(share) {
  const value = 100 * share;
  const digits = value > 0 && value < 1 ? 1 : 0;
  return `${value.toFixed(digits)} %`;
}

/** Return a number with at most three digits that matter. */
export function short(value) {
  if (Math.abs(value) >= 100) {
    return Math.round(value).toLocaleString("en");
  }
  return String(Number(value.toPrecision(3)));
}

export function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}
