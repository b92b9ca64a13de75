// The program as it moves: a drawing, and beneath it the figures of what was pointed at, tapped or reached by keyboard.
import { h } from "/static/elements.js";

const ASK = "Point at a role or a channel, or tap it or reach it with Tab, for its figures.";

// Takes over what differs, so that a bar that grows is the same bar.
function morph(old, made) {
  if (old.nodeName !== made.nodeName || old.childNodes.length !== made.childNodes.length) {
    old.replaceWith(made);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== made.data) old.data = made.data;
    return;
  }
  for (const { name } of [...(old.attributes || [])]) {
    if (!made.hasAttribute(name)) old.removeAttribute(name);  // the border of a replica that waited, once it works
  }
  for (const { name, value } of [...(made.attributes || [])]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const children = [...made.childNodes];  // as they are before any of them replaces an old one
  [...old.childNodes].forEach((child, i) => morph(child, children[i]));
}

// open: called with the role whose log is asked for.
export function program(open) {
  const picture = h("div", { class: "program" }), figures = h("div", { class: "part" }, h("p", { class: "dim" }, ASK));
  let parts = {}, chosen = "", touched = false, told = "";
  const part = (event) => event.target.closest("[data-role], [data-channel]");
  const key = (found) => (found.dataset.role === undefined ? `channel/${found.dataset.channel}` : `role/${found.dataset.role}`);
  function tell() {
    const rows = parts[chosen], text = JSON.stringify([chosen, rows]);
    if (!rows || text === told) return;
    told = text;
    const role = chosen.startsWith("role/") ? chosen.slice("role/".length) : null;
    figures.replaceChildren(h("dl", {}, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      role === null ? "" : h("button", { type: "button", onclick: () => open(role) }, `log of ${role}`));
  }
  function choose(event) {
    const found = part(event);
    if (!found) return;
    chosen = key(found);
    tell();
  }
  function follow(event) {
    choose(event);
    const found = part(event);
    if (found && found.dataset.role !== undefined) open(found.dataset.role);
  }
  picture.addEventListener("pointerdown", (event) => { touched = event.pointerType === "touch"; });
  picture.addEventListener("pointerover", (event) => { if (event.pointerType !== "touch") choose(event); });
  picture.addEventListener("focusin", choose);
  picture.addEventListener("click", (event) => (touched ? choose(event) : follow(event)));  // a tap tells, and offers the log
  picture.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    follow(event);
  });
  function update(state) {
    if (!state.svg) {
      picture.replaceChildren(h("pre", {}, state.text || "this run recorded no drawing of its program"));
      figures.hidden = true;
      return;
    }
    const made = document.importNode(
      new DOMParser().parseFromString(state.svg, "image/svg+xml").documentElement, true);
    if (picture.firstElementChild && picture.firstElementChild.nodeName === "svg") morph(picture.firstElementChild, made);
    else picture.replaceChildren(made);
    parts = state.parts;
    tell();
  }
  return { elements: [picture, figures], update };
}
