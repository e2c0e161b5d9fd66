"use strict";
// Starts the page: reads its data, draws it, and joins what is clicked and pressed to what is shown.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent, Words.numbers), program = data.program;
  const at = (id) => document.getElementById(id);
  const moved = new Set((data.difference || []).flatMap((part) => part.rows.map((row) => row.node)).filter(Boolean));
  const state = { program, difference: data.difference, moved, model: Model.build(program), selected: null, sizes: false, heat: "place", select, toggle, say };

  const LEAST = 0.78;  // the smallest scale at which a program is first shown

  function select(each, { centre = false, read = false } = {}) {
    state.selected = each;
    if (each && each.leaf && each.node.kind === "size" && !state.sizes) showSizes(true);
    const drawn = each && !each.segment, hidden = drawn && !Model.isVisible(each);
    if (hidden) { Model.reveal(each); Draw.render(); }
    Draw.mark();
    Tree.mark(drawn ? each : null);
    Details.show(each);
    if (drawn && each !== state.model.root && (centre || hidden)) { Draw.into(each, centre); Draw.focus(each); }
    if (read) at("details").focus();
    say(each && each.segment ? `Selected ${each.segment.name}` : each ? each.leaf ? `Selected ${each.node.name}` : `Selected module ${each.path || each.label}` : "");
  }

  function toggle(each) {
    if (each.leaf || each === state.model.root) return;
    each.open = !each.open;
    Draw.keeping(each, Draw.render);
    Draw.focus(each);
    say(`${each.open ? "Unfolded" : "Folded"} ${each.path || each.label}`);
  }

  function every(open) {
    Model.walk(state.model.root, (each) => { if (!each.leaf && each !== state.model.root) each.open = open; });
    Draw.render();
    Draw.fit(undefined, LEAST);
    say(open ? "Unfolded all modules" : "Folded all modules");
  }

  function showSizes(yes) {
    state.sizes = yes;
    at("sizes").setAttribute("aria-pressed", String(yes));
    Draw.render();
  }

  function say(text) { at("status").textContent = text; }

  function theme(name) {
    document.documentElement.dataset.theme = name;
    at("theme").setAttribute("aria-pressed", String(name === "dark"));
  }

  function head() {
    const operators = program.nodes.filter((n) => n.kind === "operator"), inside = operators.filter((n) => n.place === "tensorrt");
    const engines = (program.segments || []).filter((s) => s.place === "tensorrt"), bytes = engines.reduce((sum, s) => sum + (s.nbytes || 0), 0);
    at("title").textContent = program.title;
    const parts = [`${inside.length} of ${operators.length} operators in TensorRT`, Words.count(engines.length, "engine"), bytes ? Words.bytes(bytes) : "", ((program.versions || [])[2] || []).join(" ")];
    at("headline").textContent = at("headline").title = parts.filter(Boolean).join(" · ");
    const share = operators.length ? (100 * inside.length) / operators.length : 0, bar = at("coverage");
    bar.setAttribute("aria-label", parts[0]);
    for (const [name, width] of [["tensorrt", share], ["pytorch", operators.length ? 100 - share : 0]]) {
      const made = Html.element("i");
      made.style.cssText = `width:${width}%;background:var(--${name})`;
      bar.append(made);
    }
    legend();
  }

  function legend() {
    const places = [["tensorrt", "TensorRT"], ["pytorch", "PyTorch"], ["host", "inputs, outputs, sizes"]];
    const most = Math.max(0, ...state.model.times.values()), scale = Html.element("i", { class: "scale", "aria-hidden": "true" });
    const rows = state.heat === "time" ? [["no time", scale, `${Words.ms(most)} a node`]] : places.map(([name, text]) => [Html.dot(name), text]);
    at("legend").replaceChildren(...rows.map((row) => Html.element("span", {}, ...row)));
  }

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const keys = { "/": Search.focus, f: () => Draw.fit(), t: flip, "?": () => at("keys").showModal(), Escape: () => select(null) };
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  const flip = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => theme(event.matches ? "dark" : "light"));
  head();
  Model.unfoldSome(state.model, 14);
  Draw.start(state);
  Tree.start(state);
  Details.start(state);
  Search.start(state);
  Draw.render();
  Details.show(null);
  Draw.fit(0, LEAST);
  at("heat-label").hidden = !state.model.times.size;
  at("heat").addEventListener("change", (event) => { state.heat = event.target.value; legend(); Draw.render(); });
  at("sizes").hidden = !program.nodes.some((node) => node.kind === "size");
  at("sizes").addEventListener("click", () => showSizes(!state.sizes));
  at("unfold").addEventListener("click", () => every(true));
  at("fold").addEventListener("click", () => every(false));
  at("fit").addEventListener("click", () => Draw.fit());
  at("theme").addEventListener("click", flip);
  at("help").addEventListener("click", () => at("keys").showModal());
  at("graph").addEventListener("click", (event) => { if (event.target === at("graph")) select(null); });
  document.addEventListener("keydown", pressed);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
