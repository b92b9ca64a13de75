// Asks the server for the run that the address names, shows it, and asks again while somebody looks.
import { views } from "/static/views.js";

const SOON = 1500, LATER = 8000;  // milliseconds between two looks at what runs, and at what has ended
const main = document.getElementById("main"), link = document.getElementById("link");
let shown = null, timer = 0;

export async function ask(path, query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    for (const one of Array.isArray(value) ? value : [value]) words.append(name, one);
  }
  const response = await fetch(`/api/${path}?${words}`, { credentials: "same-origin" }).catch(() => { throw new Error("gone"); });
  if (response.status === 403) throw new Error("denied");
  const data = await response.json();
  if (!response.ok) throw new Error(data.error || `the server answered ${response.status}`);
  return data;
}

function place() {
  const [kind, name, tab] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { kind: kind || "list", name: name || "", tab: tab || "" };
}

function tell(text, gone) {
  link.textContent = text;
  link.className = gone ? "gone" : "";
}

async function look() {
  clearTimeout(timer);
  const at = place(), key = location.hash;
  let wait = SOON;
  try {
    if (!shown || shown.key !== key) {
      shown = { key, view: (views[at.kind] || views.list)(at, main) };
    }
    const running = await shown.view.refresh();
    if (running === false) wait = LATER;
    tell(running === false ? "ended" : "live", false);
  } catch (error) {
    if (error.message === "denied") {
      tell("this server does not know the page's token: open the address that it printed", true);
      wait = LATER;
    } else if (error.message === "gone") {
      tell("the server is gone; looking for it", true);
    } else {
      tell(error.message, true);
    }
  }
  if (!document.hidden) timer = setTimeout(look, wait);
}

window.addEventListener("hashchange", look);
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) {
    const search = main.querySelector("input[type=search]");
    if (search) { search.focus(); event.preventDefault(); }
  }
});
look();
