// Elements of a page. Text is only ever set as text.
export function h(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function address(kind, name, tab) {
  return `#/${[kind, name, tab].filter((word) => word).map(encodeURIComponent).join("/")}`;
}

export function table(heads, rows, kind = "") {
  return h("div", { class: `scroll ${kind}` }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", {}, head)))), h("tbody", {}, rows)));
}

export function row(cells, attributes) {
  return h("tr", attributes, cells.map((cell) => h("td", {}, cell)));
}

export function titled(text) {
  document.getElementById("where").textContent = text;
  document.title = text ? `${text} - Shoal` : "Shoal";
}

// Numbers as the server writes them, whatever the language of the browser.
export function short(value) {
  return value.toLocaleString("en", Number.isInteger(value) ? {} : { maximumSignificantDigits: 5 });
}

export function counted(number, one, many) {
  return `${short(number)} ${number === 1 ? one : many}`;
}
