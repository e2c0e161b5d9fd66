"use strict";
// What is told of the program, of a module, and of a node.

const Details = (() => {
  const { element, dot, code, facts, table, section, list, folded } = Html;
  const panel = document.getElementById("details");
  let state;
  const start = (given) => (state = given);

  function link(name) {
    const leaf = state.model.leaves.get(name);
    if (!leaf) return code(name);
    const made = element("button", { class: "link", type: "button" }, name);
    made.addEventListener("click", () => state.select(leaf, { centre: true }));
    return made;
  }
  const links = (names) => names.flatMap((name, i) => (i ? [", ", link(name)] : [link(name)]));
  const badge = (place, text) => element("span", { class: "badge" }, dot(place), text || Words.place(place));

  function show(each) {
    const parts = !each ? overview() : each.leaf ? node(each) : module(each);
    panel.replaceChildren(...(each ? [back()] : []), ...parts);
    panel.scrollTop = 0;
  }

  function back() {
    const made = element("button", { class: "back", type: "button", "aria-label": "Back to the overview", title: "Overview (Esc)" }, "Overview");
    made.addEventListener("click", () => state.select(null));
    return made;
  }

  function node(leaf) {
    const each = leaf.node, place = Model.place(leaf), profile = state.model.times.get(each.name);
    return [
      element("h2", {}, each.name),
      element("p", { class: "kind" }, each.target),
      badge(place), each.segment ? element("span", { class: "badge" }, each.segment) : "",
      each.reason ? element("div", { class: "why" }, element("p", {}, each.reason), each.hint ? element("p", {}, "Hint: " + each.hint) : "") : "",
      each.healed ? element("div", { class: "why good" }, element("p", {}, "Healed: " + each.healed)) : "",
      facts([
        ["Source", each.where && code(each.where)],
        ["Module", each.module && code(each.module)],
        ["Converter", each.converter && code(each.converter)],
        ["Time", profile !== undefined && Words.ms(profile)],
        ["Quantized", each.fusion],
        ["Gives", (each.values || []).map((v) => element("div", {}, code(Words.value(v)), v.nbytes ? " " + Words.bytes(v.nbytes) : ""))],
        ["Reads", links((each.inputs || []))],
        ["Read by", links(state.model.readers.get(each.name) || [])],
      ].filter(([, value]) => value && value.length !== 0)),
      ...section("Layers", (each.layers || []).length && layers(each.layers)),
      ...section("Kernels in the plan", (each.kernels || []).length && list(each.kernels.map((i) => kernel(state.program.kernels[i], each.name)))),
      ...section("Weights", (each.weights || []).length && element("div", {}, ...each.weights.map(weight))),
      ...section("Errors from verify", each.kind === "output" && agreement(state.program.agreement)),
    ].filter(Boolean);
  }

  function layers(rows) {
    const made = table(["Kind", "Name"], rows.map((l) => [l.kind.toLowerCase(), code(l.name)]));
    made.className = "layers";
    return made;
  }

  function kernel(each, own) {
    const others = (each.nodes || []).filter((name) => name !== own);
    return [code(each.name), others.length ? " with " : "", ...links(others)];
  }

  function weight(each) {
    const made = element("details", {}, element("summary", {}, code(each.name), ` ${each.dtype}[${(each.shape || []).join(", ")}] ${Words.bytes(each.nbytes || 0)}`));
    made.append(facts([["Recipe", each.recipe && code(each.recipe)], ["Refit", each.fixed || "follows the model's parameters"]]));
    return made;
  }

  function module(each) {
    const operators = new Map(), fallbacks = [];
    Model.walk(each, (child) => {
      if (!child.leaf || child.node.kind !== "operator") return;
      operators.set(child.node.target, (operators.get(child.node.target) || 0) + 1);
      if (child.node.place === "pytorch") fallbacks.push(child.node);
    });
    const counted = [...operators].sort((a, b) => b[1] - a[1]);
    const fold = element("button", { type: "button" }, each.open ? "Fold" : "Unfold");
    fold.addEventListener("click", () => { state.toggle(each); show(each); });
    return [
      element("h2", {}, each.path || each.label),
      element("p", { class: "kind" }, each.group ? "nodes that follow each other" : each.type),
      badge(Model.place(each)),
      each.parent ? fold : "",
      figures([[each.count, "operators"], [Words.bytes(each.bytes), "weights"], [each.time ? Words.ms(each.time) : each.inside, each.time ? "time" : "in TensorRT"]]),
      ...section("In PyTorch", fallbacks.length && folded("nodes", fallbacks.map(fallback))),
      ...section("Operators", table(["Operator", "Count"], counted.map(([target, n]) => [code(target), String(n)]), [1])),
    ].filter(Boolean);
  }

  const fallback = (each) => [link(each.name), ` ${Model.short(each.target)}`, element("div", {}, element("small", {}, each.reason))];
  const figures = (rows) => element("div", { class: "figures" }, ...rows.map(([value, name]) => element("div", {}, element("b", {}, String(value)), element("span", {}, name))));

  function overview() {
    const p = state.program, operators = p.nodes.filter((n) => n.kind === "operator"), inside = operators.filter((n) => n.place === "tensorrt");
    const outside = operators.filter((n) => n.place === "pytorch"), engines = (p.segments || []).filter((s) => s.place === "tensorrt");
    const size = engines.reduce((sum, s) => sum + (s.nbytes || 0), 0), weights = engines.reduce((sum, s) => sum + (s.weights || 0), 0);
    return [
      element("h2", {}, "Overview"),
      figures([[`${inside.length} / ${operators.length}`, "operators in TensorRT"], [engines.length, engines.length === 1 ? "engine" : "engines"], [Words.bytes(size || weights), size ? "of engines" : "of weights"]]),
      ...differences(),
      ...section("In PyTorch", outside.length && folded("nodes", outside.map(fallback), 12)),
      ...section("Segments", (p.segments || []).length && segments(p)),
      ...section("Stages", (p.stages || []).length && stages(p.stages)),
      ...section("Time on the GPU", p.profile && profiled(p.profile)),
      ...section("Errors from verify", agreement(p.agreement)),
      ...section("Healed", (p.healed || []).length && list(p.healed.map((h) => [link(h.node), ` ${h.action}: ${h.reason}`]))),
      ...section("Not used", (p.unreached || []).length && list(p.unreached.map((u) => `${u.what}: ${u.reason}`))),
      ...section("Inputs", list((p.inputs || []).map(code))),
      ...section("Outputs", list((p.outputs || []).map(code))),
      ...section("Sizes that vary", (p.sizes || []).length && list(p.sizes.map(code))),
      ...section("Kernels", (p.kernels || []).length && kernels(p.kernels)),
      ...section("Compiled with", facts([...(p.versions || []), ...(p.settings || [])].map(([name, value]) => [name, code(value)]))),
    ].filter(Boolean);
  }

  function differences() {
    const d = state.difference;
    if (!d) return [];
    if (!d.length) return section("Differences", element("p", {}, "There are none."));
    return section("Differences", element("div", {}, ...d.map((part) => element("details", { open: "" }, element("summary", {}, part.title),
      list(part.rows.map((row) => [...(row.node ? [link(row.node), " "] : []), row.text]))))));
  }

  function segments(p) {
    const rows = p.segments.map((s) => [element("span", {}, dot(s.place), " ", s.name), String(s.operators), Words.bytes(s.nbytes || s.weights || 0)]);
    const cuts = (p.cuts || []).map((c) => [`${c.source} → ${c.target}`, Words.bytes(c.nbytes || 0), Words.bytes(c.max_nbytes || 0)]);
    const made = element("div", {}, table(["Segment", "Operators", "Bytes"], rows, [1, 2]));
    if (cuts.length) made.append(...section("Bytes of each cut", table(["From, to", "Optimal", "At most"], cuts, [1, 2])));
    return made;
  }

  function stages(rows) {
    const most = Math.max(...rows.map((s) => s.seconds), 1e-9);
    const bar = (s) => { const made = element("div", { class: "bar" }, element("i")); made.firstChild.style.width = (100 * s.seconds) / most + "%"; return made; };
    return table(["Stage", "", "Seconds", "Memory"], rows.map((s) => [s.stage, bar(s), s.seconds.toFixed(2), Words.bytes(Math.max(0, s.peak || 0))]), [2, 3]);
  }

  function kernels(rows) {
    const counts = new Map();
    rows.forEach((k) => counts.set(k.name, (counts.get(k.name) || 0) + 1));
    const listed = [...counts].sort((a, b) => b[1] - a[1]);
    const made = element("details", {}, element("summary", {}, `${rows.length} kernels, ${listed.length} different`));
    made.append(table(["Kernel", "Count"], listed.slice(0, 200).map(([name, n]) => [code(name), String(n)]), [1]));
    return made;
  }

  function profiled(profile) {
    const layers = profile.segments.flatMap((s) => (s.layers || []).map((l) => ({ ...l, segment: s.segment }))).sort((a, b) => b.milliseconds - a.milliseconds);
    const made = element("div", {}, facts([
      ["Call", Words.ms(profile.call || 0)],
      ["With graphs", profile.graph ? Words.ms(profile.graph) : profile.no_graph || "not measured"],
      ["Sum of layers", Words.ms(layers.reduce((sum, l) => sum + l.milliseconds, 0))],
      ["Measured", `${profile.gpu || ""}, ${profile.library || ""}, median of ${profile.runs || 0} runs`],
    ]));
    made.append(table(["Layer", "Time"], layers.slice(0, 30).map((l) => [element("div", {}, code(l.name), element("div", {}, ...links((l.nodes || []).slice(0, 6)))), Words.ms(l.milliseconds)]), [1]));
    return made;
  }

  function agreement(found) {
    if (!found) return null;
    const rows = found.rows.map((r) => [element("span", {}, r.output, element("div", {}, element("small", {}, r.sample))), r.raised ? "raises" : Words.error(r.error || 0), Words.error(r.eager_error || 0), Words.error(r.bound || 0)]);
    return element("div", {}, element("p", {}, `${found.executor} executor${found.gpu ? ", " + found.gpu : ""}`), table(["Output", "Error", "Eager's", "Bound"], rows, [1, 2, 3]));
  }

  return { start, show };
})();
