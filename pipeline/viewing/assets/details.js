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
    const parts = !each ? overview() : each.segment ? segment(each.segment) : each.leaf ? node(each) : module(each);
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
      badge(place, place === "host" ? each.kind : ""), each.segment ? within(each.segment) : "",
      ...facing(leaf, profile),
    ].filter(Boolean);
  }

  // All that is known of a node.
  function facing(leaf, profile) {
    const each = leaf.node;
    return [
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
      ...section("Weights", (each.weights || []).length && element("div", {}, ...each.weights.map((w) => weight(w, each.weights.length < 4)))),
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

  function weight(each, open) {
    const made = element("details", open ? { open: "" } : {}, element("summary", {}, code(each.name), ` ${each.dtype}[${(each.shape || []).join(", ")}] ${Words.bytes(each.nbytes || 0)}`));
    made.append(facts([["Recipe", each.recipe && code(each.recipe)], ["Refit", each.fixed || "follows the model's parameters"]]));
    return made;
  }

  function module(each) {
    const operators = new Map(), fallbacks = [], leaves = [];
    Model.walk(each, (child) => {
      if (!child.leaf || child.node.kind !== "operator") return;
      leaves.push(child);
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
      figures([[each.count, each.count === 1 ? "operator" : "operators"], [Words.bytes(each.bytes), "weights"], [each.time ? Words.ms(each.time) : each.inside, each.time ? "time" : "in TensorRT"]]),
      ...(leaves.length === 1 ? only(leaves[0]) : [
        ...section("In PyTorch", fallbacks.length && reasons(fallbacks)),
        ...section("Inside", inside(each)),
        ...section("Operators", table(["Operator", "Count"], counted.map(([target, n]) => [code(target), String(n)]), [1])),
      ]),
    ].filter(Boolean);
  }

  // The one operator of a module, as a click on it would tell.
  const only = (leaf) => [...section("Its operator", element("p", {}, link(leaf.node.name), " ", code(leaf.node.target))), ...facing(leaf, state.model.times.get(leaf.node.name))];

  // What a module holds, each with its operators, bytes of weights, and time.
  function inside(each) {
    const shown = each.children.filter((child) => !child.leaf || child.node.kind === "operator"), timed = state.model.times.size > 0;
    const row = (child) => [element("span", {}, dot(Model.place(child)), " ", opening(child)), child.leaf ? "" : String(child.count), weighs(child), ...(timed ? [child.time ? Words.ms(child.time) : "–"] : [])];
    return shown.length > 1 && table(["Module or node", "Operators", "Weights", ...(timed ? ["Time"] : [])], shown.map(row), [1, 2, 3]);
  }

  function weighs(child) {
    const bytes = child.leaf ? [...child.weights.values()].reduce((a, b) => a + b, 0) : child.bytes;
    return bytes ? Words.bytes(bytes) : "–";
  }

  function opening(child) {
    const made = element("button", { class: "link", type: "button" }, child.leaf ? child.node.name : child.label);
    made.addEventListener("click", () => state.select(child, { centre: true }));
    return made;
  }

  // Nodes in PyTorch by the reason why they are, each reason once.
  function reasons(nodes) {
    const found = new Map();
    for (const each of nodes) {
      const key = JSON.stringify([each.reason || "", each.hint || ""]);
      found.set(key, [...(found.get(key) || []), each]);
    }
    return element("div", {}, ...[...found].map(([key, alike]) => {
      const [reason, hint] = JSON.parse(key), names = alike.map((each) => each.name);
      const made = element("div", { class: "why" }, element("p", {}, reason), hint ? element("p", {}, "Hint: " + hint) : "");
      if (names.length <= 24) made.append(element("p", { class: "who" }, ...links(names)));
      else made.append(element("details", {}, element("summary", {}, Words.count(names.length, "node")), element("p", {}, ...links(names))));
      return made;
    }));
  }

  const within = (name) => {
    const found = (state.program.segments || []).find((s) => s.name === name);
    if (!found) return element("span", { class: "badge" }, name);
    const made = element("button", { class: "badge", type: "button", title: "About this segment" }, name);
    made.addEventListener("click", () => state.select({ segment: found }));
    return made;
  };

  function segment(s) {
    const nodes = state.program.nodes.filter((n) => n.segment === s.name && n.kind === "operator");
    const cuts = (state.program.cuts || []).filter((c) => c.source === s.name || c.target === s.name);
    return [
      element("h2", {}, s.name),
      element("p", { class: "kind" }, s.place === "tensorrt" ? "An engine" : "A segment of PyTorch"),
      badge(s.place),
      facts([
        ["Operators", String(s.operators)],
        ["Layers", s.layers && String(s.layers)],
        ["Plan", s.nbytes && Words.bytes(s.nbytes)],
        ["Weights", s.weights && Words.bytes(s.weights)],
        ["Built by", s.library && code(s.library)],
        ["SHA-256", s.digest && code(s.digest)],
        ["Takes", (s.inputs || []).map((port) => element("div", {}, code(port)))],
        ["Gives", (s.outputs || []).map((port) => element("div", {}, code(port)))],
      ].filter(([, value]) => value && value.length !== 0)),
      ...section("Bytes of each cut", cuts.length && cutTable(cuts)),
      ...section("Nodes", nodes.length && (nodes.length > 24 ? element("details", {}, element("summary", {}, Words.count(nodes.length, "node")), ...links(nodes.map((n) => n.name))) : element("p", {}, ...links(nodes.map((n) => n.name))))),
    ].filter(Boolean);
  }
  const figures = (rows) => element("div", { class: "figures" }, ...rows.map(([value, name]) => element("div", {}, element("b", {}, String(value)), element("span", {}, name))));

  function overview() {
    const p = state.program, operators = p.nodes.filter((n) => n.kind === "operator"), inside = operators.filter((n) => n.place === "tensorrt");
    const marked = p.nodes.filter((n) => n.fusion);
    const outside = operators.filter((n) => n.place === "pytorch"), engines = (p.segments || []).filter((s) => s.place === "tensorrt");
    const size = engines.reduce((sum, s) => sum + (s.nbytes || 0), 0), weights = engines.reduce((sum, s) => sum + (s.weights || 0), 0);
    return [
      element("h2", {}, "Overview"),
      figures([[`${inside.length} / ${operators.length}`, "in TensorRT"], [engines.length, engines.length === 1 ? "engine" : "engines"], [Words.bytes(size || weights), size ? "of engines" : "of weights"]]),
      ...differences(),
      ...section("In PyTorch", outside.length && reasons(outside)),
      ...section("Quantization", marked.length && quantized(marked)),
      ...section("Segments", (p.segments || []).length && segments(p)),
      ...section("Stages", (p.stages || []).length && stages(p.stages)),
      ...section("Time on the GPU", p.profile && profiled(p.profile)),
      ...section("Errors from verify", agreement(p.agreement)),
      ...section("Healed", (p.healed || []).length && list(p.healed.map((h) => [link(h.node), ` ${h.action}: ${h.reason}`]))),
      ...section("Not used", (p.unreached || []).length && list(p.unreached.map((u) => `${u.what}: ${u.reason}`))),
      ...section("Inputs", (p.inputs || []).length && list(p.inputs.map(code))),
      ...section("Outputs", (p.outputs || []).length && list(p.outputs.map(code))),
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
      list(part.rows.map(difference))))));
  }

  // A difference, with its node's name as a link.
  function difference(row) {
    const at = row.node ? row.text.indexOf(row.node) : -1;
    return at < 0 ? row.text : [row.text.slice(0, at), link(row.node), row.text.slice(at + row.node.length)];
  }

  function segments(p) {
    const size = (s) => Words.bytes(s.nbytes || s.weights || 0);
    const rows = p.segments.map((s) => [element("span", {}, dot(s.place), " ", about(s)), String(s.operators), s.nbytes || s.weights ? size(s) : "–"]);
    const made = element("div", {}, table(["Segment", "Operators", "Bytes"], rows, [1, 2]));
    if ((p.cuts || []).length) made.append(...section("Bytes of each cut", cutTable(p.cuts)));
    return made;
  }

  const cutTable = (cuts) => table(["From, to", "Optimal", "At most"], cuts.map((c) => [`${c.source} → ${c.target}`, Words.bytes(c.nbytes || 0), Words.bytes(c.max_nbytes || 0)]), [1, 2]);

  function about(s) {
    const made = element("button", { class: "link", type: "button" }, s.name);
    made.addEventListener("click", () => state.select({ segment: s }));
    return made;
  }

  // How many quantizing nodes are fused, and which are not.
  function quantized(nodes) {
    const fused = nodes.filter((n) => n.fusion.startsWith("fused")), others = nodes.filter((n) => !n.fusion.startsWith("fused"));
    return element("div", {}, element("p", {}, `${fused.length} of ${nodes.length} nodes that quantize or dequantize are fused with a product`),
      ...(others.length ? [folded("not fused", others.map((n) => [link(n.name), element("div", {}, element("small", {}, n.fusion))]))] : []));
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
    const sum = layers.reduce((total, l) => total + l.milliseconds, 0), inner = (s) => (s.layers || []).reduce((total, l) => total + l.milliseconds, 0);
    const parts = profile.segments.map((s) => [element("span", {}, dot(s.place), " ", s.segment), Words.ms(s.milliseconds), Words.ms(inner(s))]);
    const made = element("div", {}, facts([
      ["Call", Words.ms(profile.call || 0)],
      ["With graphs", profile.graph ? Words.ms(profile.graph) : profile.no_graph || "not measured"],
      ["Sum of layers", `${Words.ms(sum)}: ${Words.share(sum, profile.call)} of the call${profile.graph ? `, ${Words.share(sum, profile.graph)} of that with graphs` : ""}`],
      ["Measured", `${profile.gpu || ""}, ${profile.library || ""}, median of ${profile.runs || 0} runs`],
    ]));
    made.append(table(["Segment", "Time", "Its layers"], parts, [1, 2]), table(["Layer", "Time", ""], layers.slice(0, LAYERS).map((l) => [timed(l), Words.ms(l.milliseconds), Words.share(l.milliseconds, sum)]), [1, 2]));
    const rest = layers.slice(LAYERS).reduce((total, l) => total + l.milliseconds, 0);
    if (layers.length > LAYERS) made.append(element("p", {}, `${layers.length - LAYERS} more layers: ${Words.ms(rest)}`));
    return made;
  }

  const LAYERS = 30, OWN = { between: "no kernel runs", streams: "streams that wait for each other", sizes: "sizes of dynamic shapes" };
  function timed(layer) {
    const nodes = layer.nodes || [], more = nodes.length > 6 ? ` and ${nodes.length - 6} more` : "";
    return element("div", {}, code(layer.name), element("div", {}, ...(nodes.length ? [...links(nodes.slice(0, 6)), more] : [element("small", {}, OWN[layer.by] || "TensorRT's own, no node's")])));
  }

  function agreement(found) {
    if (!found) return null;
    const rows = found.rows.map((r) => [judged(r), r.raised ? "–" : Words.error(r.error ?? 0), Words.error(r.eager_error || 0), Words.error(r.bound || 0)]);
    return element("div", {}, element("p", {}, `${found.executor} executor${found.gpu ? ", " + found.gpu : ""}`), table(["Output", "Error", "Eager's", "Bound"], rows, [1, 2, 3]));
  }

  // An output at a size, and whether it is further from the exact values than it may be.
  function judged(r) {
    const within = (r.error ?? 0) <= (r.bound ?? 0) && (r.norm_error ?? 0) <= (r.norm_bound ?? 0);
    const beyond = !r.unjudged && !within;
    const said = r.raised ? `raises ${r.raised}` : r.unjudged ? `not judged: ${r.unjudged}` : beyond ? ((r.norm_error ?? 0) <= (r.norm_bound ?? 0) ? "beyond its bound" : `the norm of its errors is ${Words.error(r.norm_error)}, bound ${Words.error(r.norm_bound || 0)}`) : "";
    const which = `${r.sample}${r.source === "module" ? ", the module beside its graph" : ""}`;
    return element("span", {}, r.output, element("div", {}, element("small", {}, which)), said ? element("div", { class: r.unjudged ? null : "wrong" }, said) : "");
  }

  return { start, show };
})();
