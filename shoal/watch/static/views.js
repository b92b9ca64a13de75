// The views: each makes its elements once and puts new values into them. Text is only ever set as text.
import { ask } from "/static/app.js";
import { address, counted, h, row, short, table, titled } from "/static/elements.js";
import { program } from "/static/program.js";

const TABS = [["", "Overview"], ["curves", "Curves"], ["time", "Time"], ["evaluations", "Evaluations"],
  ["events", "Events"], ["settings", "Configuration"], ["logs", "Logs"]];
const LEGEND = "Replicas: ● working, ○ waiting, ◆ starting, ▲ restarting, ✕ dead. Click a role for its log.";
const NO_LOG = "no log yet (the serial runtime writes none)";
const UNENDED = ["running", "failed", "killed", "ended"];  // states; any other is the reason for which a run ended
const chosen = {};  // what was chosen for each set of runs, while this page is open

// Reading this script takes a second or more, so it begins once what needs no chart is on the screen.
let library;
function plotly() {
  library ||= new Promise((done, fail) => {
    const script = h("script", { src: "/static/plotly.min.js", onload: () => done(window.Plotly), onerror: () => {
      library = undefined;
      fail(new Error("the chart library did not load"));
    } });
    requestAnimationFrame(() => setTimeout(() => document.head.append(script)));
  });
  return library;
}

// A finger that moves over a chart moves the page; its buttons would lie over the title.
const TOUCH = matchMedia("(hover: none)").matches;

async function draw(parent, figures) {
  const drawing = await plotly();
  while (parent.children.length > figures.length) {
    drawing.purge(parent.lastChild);
    parent.lastChild.remove();
  }
  while (parent.children.length < figures.length) parent.append(h("div", { class: "chart" }));  // before any is measured
  for (const [i, figure] of figures.entries()) {
    if (TOUCH) {
      figure.layout.dragmode = false;
      figure.config.displayModeBar = false;
    }
    await drawing.react(parent.children[i], figure);
  }
}

// ------------------------------------------------------------------------------------------ the list
function list(at, main) {
  const columns = [["name", "run"], ["state", "state"], ["return", "return"], ["steps", "steps"], ["system", "system"],
    ["env", "environment"], ["seed", "seed"], ["when", "written"]];
  const filter = h("input", { type: "search", placeholder: "filter", "aria-label": "filter runs" });
  const compare = h("button", { type: "button", disabled: true }, "Compare chosen");
  const body = h("div", {}), picked = new Set();
  let runs = [], known = "", by = "written", down = true;
  const key = { when: "written" }, FALLING = ["written", "return", "steps"];  // the largest first, when chosen
  function show() {
    const words = filter.value.toLowerCase().split(/\s+/);
    const found = runs.filter((run) => words.every((word) => JSON.stringify(run).toLowerCase().includes(word)));
    found.sort((a, b) => {
      const [x, y] = [a[by], b[by]];
      const order = typeof x === "number" || typeof y === "number" ? (x ?? -Infinity) - (y ?? -Infinity)
        : String(x).localeCompare(String(y), undefined, { numeric: true });
      return down ? -order : order;
    });
    const heads = ["", ...columns.map(([name, title]) => {
      const to = key[name] || name;
      return h("button", { type: "button", "data-key": `by ${name}`, onclick: () => {
        down = by === to ? !down : FALLING.includes(to);
        by = to;
        show();
      } }, title, by === to ? h("span", { "aria-label": down ? "falling" : "rising" }, down ? " ▼" : " ▲") : "");
    })];
    const focused = document.activeElement && document.activeElement.getAttribute("data-key");
    body.replaceChildren(found.length ? table(heads, found.map((run) => {
      const box = h("input", { type: "checkbox", checked: picked.has(run.name), "aria-label": `choose ${run.name}`,
        "data-key": `choose ${run.name}`, onchange: () => { box.checked ? picked.add(run.name) : picked.delete(run.name); compare.disabled = !picked.size; } });
      return h("tr", {}, h("td", {}, run.kind === "run" ? box : ""),
        h("td", {}, h("a", { href: address("run", run.name), "data-key": `open ${run.name}` }, run.name),
          run.problem ? h("div", { class: "bad" }, run.problem) : ""),
        h("td", {}, h("span", { class: `state ${run.state}` }, UNENDED.includes(run.state) ? run.state : `ended: ${run.state}`)),
        h("td", { class: "number" }, run.return === null || run.return === undefined ? "-" : short(run.return)),
        h("td", { class: "number" }, short(run.steps)),
        h("td", {}, run.system), h("td", {}, run.env), h("td", {}, run.seed),
        h("td", {}, run.when));
    })) : h("p", {}, runs.length ? "no run matches" : "there is no run here yet"));
    if (focused) [...body.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
  }
  filter.addEventListener("input", show);
  compare.addEventListener("click", () => {
    location.hash = address("compare", [...picked].join("\n"));
  });
  titled("");
  main.replaceChildren(h("div", { class: "controls" }, filter, compare), body);
  return { refresh: async () => {
    const found = await ask("runs");
    if (found.single && !location.hash) location.replace(address("run", found.single));
    const told = JSON.stringify(found.runs);
    if (told !== known) {
      known = told;
      runs = found.runs;
      show();
    }
    return runs.some((run) => run.state === "running");
  } };
}

// ------------------------------------------------------------------------------------------ curves
function curves(names, first) {
  const choice = chosen[names.join("\n")] ||= { metrics: null, x: "steps", smooth: 0, log: false };
  const search = h("input", { type: "search", placeholder: "find a metric ( / )", "aria-label": "find a metric" });
  const x = h("select", { "aria-label": "axis" }, h("option", { value: "steps" }, "steps"), h("option", { value: "seconds" }, "time"));
  const smooth = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: String(choice.smooth), "aria-label": "smoothing" });
  const log = h("input", { type: "checkbox", checked: choice.log });
  const all = h("div", { class: "metrics" }), charts = h("div", { class: "charts" }), differing = h("div", {});
  const omitted = h("p", { class: "bad", role: "status" });
  let known = "";
  x.value = choice.x;
  const again = () => { Object.assign(choice, { x: x.value, smooth: Number(smooth.value), log: log.checked }); update(); };
  for (const control of [x, smooth, log]) control.addEventListener("change", again);
  function offer(metrics) {
    const text = JSON.stringify(metrics) + search.value;
    if (text === known) return;
    known = text;
    const word = search.value.toLowerCase();
    all.replaceChildren(...metrics.filter((m) => `${m.name} ${m.meaning}`.toLowerCase().includes(word)).map((m) => {
      const box = h("input", { type: "checkbox", checked: choice.metrics.includes(m.name), onchange: () => {
        choice.metrics = box.checked ? [...choice.metrics, m.name] : choice.metrics.filter((one) => one !== m.name);
        update();
      } });
      return h("label", {}, box, " ", m.name, " ", h("small", {}, [m.unit, m.meaning].filter((t) => t).join(": ")));
    }));
  }
  let metrics = [];
  search.addEventListener("input", () => offer(metrics));
  async function update() {
    metrics = (await ask("metrics", { run: names })).metrics;
    if (choice.metrics === null && metrics.length) choice.metrics = first.filter((name) => metrics.some((m) => m.name === name));
    choice.metrics ||= [];
    offer(metrics);
    const found = await ask("curves", { run: names, metric: choice.metrics, x: choice.x, smooth: choice.smooth, log: choice.log ? 1 : 0 });
    await draw(charts, found.figures);
    omitted.textContent = found.left_out ? `${found.left_out} more runs were chosen than fit into a figure, and are left out` : "";
    differing.replaceChildren(...(found.differing.length ? [h("h2", {}, "Settings that differ"),
      table(["setting", ...names], found.differing.map((cells) => row(cells)))] : []));
  }
  const element = h("div", {}, h("div", { class: "controls" }, search, h("label", {}, "over ", x),
    h("label", {}, "smoothing ", smooth), h("label", {}, log, " log scale")), all, omitted, charts, differing);
  return { element, update };
}

function compare(at, main) {
  const names = at.name.split("\n");
  titled(names.join(", "));
  const part = curves(names, ["episode_return", "evaluation_return", "loss", "steps_per_second"]);
  main.replaceChildren(h("h1", {}, counted(names.length, "run", "runs")), part.element);
  return { refresh: async () => { await part.update(); return true; } };
}

// --------------------------------------------------------------------------------------------- a run
function run(at, main) {
  const problems = h("div", { class: "bad", role: "alert" }), title = h("h1", {}), body = h("div", {});
  const tabs = h("nav", { class: "tabs", "aria-label": "views" }, TABS.map(([tab, name]) =>
    h("a", { href: address("run", at.name, tab), ...(tab === at.tab ? { "aria-current": "page" } : {}) }, name)));
  titled(at.name);
  main.replaceChildren(title, problems, tabs, body);
  let part = null;
  return { refresh: async () => {
    const state = await ask("run", { run: at.name });
    if (state.population) {
      tabs.remove();
      part ||= population(body);
      await part(state.population, title, problems);
      return state.population.running;
    }
    title.textContent = state.title;
    problems.replaceChildren(...Object.entries({ ...(state.error ? { failed: state.error } : {}), ...state.problems })
      .map(([name, text]) => h("p", {}, `${name}: ${text}`)));
    part ||= (parts[at.tab] || parts[""])(at, body);
    await part(state);
    return state.running;
  } };
}

const parts = {
  "": (at, body) => {
    const figures = h("dl", { class: "figures" }), charts = h("div", { class: "charts" });
    const moving = program((role) => { location.hash = `${address("run", at.name, "logs")}/${encodeURIComponent(role)}`; });
    const [picture, part] = moving.elements;
    body.replaceChildren(figures, picture, h("p", { class: "legend" }, LEGEND), part, charts);
    let drawn = -1;
    return async (state) => {
      figures.replaceChildren(...state.figures.map(([name, value, age]) => h("div", {}, h("dt", {}, name),
        h("dd", name === "state" ? { class: state.running ? "state running" : "state" } : {}, value, age ? h("small", {}, ` (${age})`) : ""))));
      moving.update(state);
      if (drawn !== state.row && state.first.length) {
        await draw(charts, (await ask("curves", { run: [at.name], metric: state.first, x: "steps" })).figures);
        drawn = state.row;  // once it is: a library that failed to load is asked for again
      }
    };
  },
  curves: (at, body) => {
    let part = null, drawn = -1;
    return async (state) => {
      if (!part) {
        part = curves([at.name], state.first);
        body.replaceChildren(part.element);
      }
      if (drawn !== state.row) await part.update();
      drawn = state.row;
    };
  },
  time: (at, body) => {
    const charts = h("div", { class: "charts" });
    body.replaceChildren(charts);
    let drawn = -1;
    return async (state) => {
      if (drawn !== state.row) await draw(charts, (await ask("times", { run: at.name })).figures);
      drawn = state.row;
    };
  },
  evaluations: (at, body) => {
    let known = "";
    return async (state) => {
      const text = JSON.stringify([state.evaluations, state.videos, state.best, state.checkpoints]);
      if (text === known) return;
      known = text;
      const heads = [...new Set(state.evaluations.flatMap((one) => Object.keys(one)))];
      body.replaceChildren(
        h("p", {}, state.best.steps === undefined ? "no evaluation yet (--eval-every N)"
          : `best: ${short(state.best.score)} at ${short(state.best.steps)} steps, kept in best/`),
        heads.length ? table(heads, state.evaluations.map((one, i) =>
          row(heads.map((head) => one[head] ?? ""), i === state.best.row ? { class: "own" } : {})).reverse()) : "",
        h("h2", {}, "Films"), state.videos.length ? h("div", { class: "films" }, state.videos.map((file) => h("figure", {},
          h("video", { controls: true, preload: "metadata", src: `/api/film?${new URLSearchParams({ run: at.name, file })}` }),
          h("figcaption", {}, `${short(Number(file.replace(".mp4", "")))} steps`)))) : h("p", { class: "dim" }, "none (--eval-video)"),
        h("h2", {}, "Checkpoints"),
        state.checkpoints.length ? table(["steps", "written"], state.checkpoints.map((one) => row([short(one.steps), one.when])))
          : h("p", { class: "dim" }, "none yet"));
    };
  },
  events: (at, body) => {
    let known = null;
    return async (state) => {
      const text = JSON.stringify(state.events);
      if (text === known) return;
      known = text;
      if (!state.events.length) body.replaceChildren(h("p", { class: "dim" }, NO_LOG));
      else body.replaceChildren(table(["when", "level", "what"], state.events.map((event) =>
        h("tr", {}, h("td", {}, event.when), h("td", { class: event.level === "info" ? "" : "bad" }, event.level),
          h("td", {}, event.text.includes("\n") ? h("pre", {}, event.text) : event.text)))));
    };
  },
  settings: (at, body) => {
    const filter = h("input", { type: "search", placeholder: "find a setting ( / )", "aria-label": "find a setting" });
    const rows = h("div", {}), facts = h("div", {});
    body.replaceChildren(facts, h("h2", {}, "Settings"), h("p", { class: "dim" }, "Marked: neither the preset's nor the default."), filter, rows);
    let state = null;
    function show() {
      const word = filter.value.toLowerCase();
      rows.replaceChildren(table(["setting", "value", "from"], state.config.filter((one) =>
        `${one.name} ${one.value} ${one.origin}`.toLowerCase().includes(word)).map((one) =>
        row([one.name, one.value, one.origin], one.own ? { class: "own" } : {}))));
      facts.replaceChildren(table(["", ""], state.facts.map((cells) => row(cells)), "facts"));
    }
    filter.addEventListener("input", show);
    return async (found) => {
      const first = JSON.stringify(found.config) !== JSON.stringify(state && state.config);
      state = found;
      if (first) show();
    };
  },
  logs: (at, body) => {
    const select = h("select", { "aria-label": "log" }), text = h("pre", { tabindex: "0" });
    body.replaceChildren(h("div", { class: "controls" }, h("label", {}, "log ", select)), text);
    const role = decodeURIComponent(location.hash.split("/")[4] || "").replaceAll("/", ".");
    select.addEventListener("change", () => update());
    async function update() {
      const bottom = text.scrollTop + text.clientHeight > text.scrollHeight - 20;
      text.textContent = select.value ? (await ask("log", { run: at.name, file: select.value })).text : NO_LOG;
      if (bottom) text.scrollTop = text.scrollHeight;
    }
    return async (state) => {
      if ([...select.options].map((one) => one.value).join() !== state.logs.join()) {
        const before = select.value || state.logs.find((name) => role && name.startsWith(`${role}-`)) || "run.log";
        select.replaceChildren(...state.logs.map((name) => h("option", { value: name }, name)));
        if (state.logs.includes(before)) select.value = before;
      }
      select.parentElement.hidden = !state.logs.length;
      await update();
    };
  },
};

function population(body) {
  const charts = h("div", { class: "charts" }), members = h("div", {}), lineage = h("div", {}), config = h("div", {});
  body.replaceChildren(charts, h("h2", {}, "Members"), members, h("h2", {}, "Copies, the newest first"), lineage,
    h("h2", {}, "Configuration"), config);
  return async (state, title, problems) => {
    title.textContent = `${state.name}: ${counted(state.members, "member", "members")}, ${counted(state.copies, "copy", "copies")} (${state.running ? "running" : "ended"})`;
    problems.replaceChildren(...Object.entries(state.problems).map(([name, text]) => h("p", {}, `${name}: ${text}`)));
    members.replaceChildren(table(state.columns, state.rows.map((cells) => row(cells))));
    lineage.replaceChildren(table(["child", "parent", "at steps", "score given up", "parent's score"], state.lineage.map((cells) => row(cells))));
    config.replaceChildren(table(["", ""], state.facts.map((cells) => row(cells)), "facts"),
      table(["setting", "value", "from"], state.config.map((one) => row([one.name, one.value, one.origin], one.own ? { class: "own" } : {}))));
    await draw(charts, state.figures);
  };
}

export const views = { list, run, compare };
