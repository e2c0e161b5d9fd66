"use strict";
// The drawing: boxes and edges as SVG, which can be moved, zoomed, clicked and walked through by keyboard.

const Draw = (() => {
  const svg = d3.select("#graph");
  let state, layer, zoom, chosen = null;

  function start(given) {
    state = given;
    const defs = svg.append("defs");
    for (const id of ["arrow", "arrow-cut"])
      defs.append("marker").attr("id", id).attr("viewBox", "0 0 10 10").attr("refX", 9).attr("refY", 5).attr("markerWidth", 7).attr("markerHeight", 7)
        .attr("orient", "auto-start-reverse").attr("markerUnits", "userSpaceOnUse").append("path").attr("d", "M0,1 L10,5 L0,9 z");
    layer = svg.append("g");
    layer.append("g").attr("class", "edges").attr("aria-hidden", "true");
    layer.append("g").attr("class", "boxes");
    zoom = d3.zoom().scaleExtent([0.02, 3]).on("zoom", (event) => layer.attr("transform", event.transform));
    svg.call(zoom).on("dblclick.zoom", null);
  }

  function render() {
    const placed = Layout.place(state.model, state.sizes);
    state.placed = placed;
    const boxes = placed.boxes.filter((each) => each !== state.model.root);
    const groups = layer.select(".boxes").selectAll("g.node").data(boxes, (each) => each.id).join(
      (enter) => enter.append("g").on("click", clicked).on("dblclick", doubled).on("keydown", pressed));
    groups.order().attr("class", classes).attr("transform", (each) => `translate(${each.x},${each.y})`)
      .attr("id", (each) => "box-" + each.id).attr("role", "button").attr("tabindex", -1)
      .attr("aria-label", spoken).attr("aria-expanded", (each) => (each.leaf ? null : each.open)).each(fill);
    const line = d3.line().x((p) => p.x).y((p) => p.y).curve(d3.curveBumpY);
    const edges = layer.select(".edges").selectAll("g.edge").data(placed.edges, (each) => each.id).join(
      (enter) => { const made = enter.append("g"); made.append("path"); return made; });
    edges.attr("class", (each) => "edge" + (each.isCut ? " cut" : ""));
    edges.select("path").attr("d", (each) => line(each.points)).attr("marker-end", (each) => (each.tail ? null : each.isCut ? "url(#arrow-cut)" : "url(#arrow)"));
    edges.selectAll("text, rect").remove();
    edges.filter((each) => each.isCut).each(function (each) { labelled(d3.select(this), Words.bytes(each.cut), middle(each)); });
    mark();
    rove(state.selected && Model.isVisible(state.selected) && drawnBox(state.selected) ? state.selected : boxes[0]);
  }

  function labelled(group, text, { x, y }) {
    const width = text.length * 6.6 + 10;
    group.append("rect").attr("x", x - width / 2).attr("y", y - 9).attr("width", width).attr("height", 18).attr("rx", 9);
    group.append("text").attr("text-anchor", "middle").attr("x", x).attr("y", y + 4).text(text);
  }

  const middle = (edge) => edge.points[Math.floor(edge.points.length / 2)];
  const drawnBox = (each) => state.placed.boxes.includes(each);

  function classes(each) {
    const moved = each.leaf && state.moved.has(each.node.name) ? " moved" : "";
    return `node ${each.leaf ? Model.place(each) : each.open ? "module open" : "module"}${moved}`;
  }

  function spoken(each) {
    if (each.leaf) return `${each.label}, node ${each.node.name}, ${Model.place(each) === "host" ? each.node.kind : "runs in " + Words.place(Model.place(each))}`;
    return `module ${each.label}${each.type ? ", " + each.type.split(".").pop() : ""}, ${Words.count(each.count, "operator")}, ${each.open ? "unfolded" : "folded"}`;
  }

  function fill(each) {
    const group = d3.select(this);
    group.selectAll("*").remove();
    const { width, height } = each.box, head = each.open ? 20 : 22;
    const round = !each.leaf ? 11 : Model.place(each) === "pytorch" ? 1 : 9;
    group.append("rect").attr("class", "box").attr("width", width).attr("height", height).attr("rx", round);
    if (each.leaf && state.heat === "time") group.select("rect.box").style("fill", heated(each.time)).style("stroke", "var(--line)");
    group.classed("heated", each.leaf && state.heat === "time");
    if (each.leaf) {
      const sub = (each.node.values || [])[0];
      centred(group, each.label, width / 2, sub ? 19 : 27, "", 30);
      if (sub) centred(group, Words.brief(sub), width / 2, 34, "sub", 34);
      return;
    }
    group.append("text").attr("class", "twist").attr("x", 11).attr("y", head).text(each.open ? "−" : "+");
    const title = group.append("text").attr("x", 27).attr("y", head).text(clipped(each.label, 30));
    if (each.type) title.append("tspan").attr("class", "type").attr("dx", 7).style("font-weight", 400).style("font-size", "11.5px").style("fill", "var(--dim)").text(each.type.split(".").pop());
    if (each.open) return;
    group.append("text").attr("class", "sub").attr("x", 27).attr("y", 39).text(Words.facts(each));
    if (!each.count) return;
    const inside = (width - 24) * each.inside / each.count, outside = Math.max(0, width - 24 - inside);
    group.append("rect").attr("class", "strip tensorrt").attr("x", 12).attr("y", height - 8).attr("width", inside).attr("height", 3).attr("rx", 1.5);
    group.append("rect").attr("class", "strip pytorch").attr("x", 12 + inside).attr("y", height - 8).attr("width", outside).attr("height", 3).attr("rx", 1.5);
  }

  const clipped = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
  const centred = (group, text, x, y, name, most) => group.append("text").attr("class", name).attr("x", x).attr("y", y).attr("text-anchor", "middle").text(clipped(text, most));
  function heated(time) {
    const most = Math.max(...state.model.times.values(), 1e-9);
    return `color-mix(in srgb, var(--pytorch) ${Math.round(85 * Math.sqrt(time / most))}%, var(--panel))`;
  }

  function clicked(event, each) {
    event.stopPropagation();
    const onTwist = !each.leaf && d3.pointer(event, this)[0] < 24 && d3.pointer(event, this)[1] < 30;
    onTwist ? state.toggle(each) : state.select(each);
  }
  function doubled(event, each) {
    event.stopPropagation();
    if (!each.leaf) state.toggle(each);
  }

  function pressed(event, each) {
    const key = event.key;
    if (key === "Enter") state.select(each, { read: true });
    else if ((key === " " || key === "+" || key === "=") && !each.leaf) state.toggle(each);
    else if ((key === "-" || key === "−") && each.parent.parent) state.toggle(each.open ? each : each.parent);
    else if (key.startsWith("Arrow")) go(each, key.slice(5));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // The next node in a direction: the nearest, deviation counting double.
  function go(each, way) {
    const across = way === "Left" || way === "Right", sign = way === "Right" || way === "Down" ? 1 : -1;
    let best = null, least = Infinity;
    for (const other of state.placed.boxes) {
      if (other === each || other === state.model.root) continue;
      const dx = middleOf(other).x - middleOf(each).x, dy = middleOf(other).y - middleOf(each).y;
      const along = sign * (across ? dx : dy), aside = Math.abs(across ? dy : dx);
      if (along <= 1) continue;
      const distance = along + 2 * aside;
      if (distance < least) [best, least] = [other, distance];
    }
    if (best) focus(best);
  }
  const middleOf = (each) => ({ x: each.x + each.box.width / 2, y: each.y + (each.open ? 15 : each.box.height / 2) });

  function rove(each) {
    if (chosen) { const old = document.getElementById("box-" + chosen.id); if (old) old.setAttribute("tabindex", -1); }
    chosen = each || null;
    const now = chosen && document.getElementById("box-" + chosen.id);
    if (now) now.setAttribute("tabindex", 0);
  }

  function focus(each) {
    rove(each);
    const box = document.getElementById("box-" + each.id);
    if (!box) return;
    box.focus({ preventScroll: true });
    into(each);
  }

  function mark() {
    const selected = state.selected, near = new Set();
    if (selected && selected.leaf) {
      const visible = (name) => { let each = state.model.leaves.get(name); while (each && !Model.isVisible(each)) each = each.parent; return each; };
      const node = selected.node.name;
      for (const edge of state.model.edges) {
        if (edge.from === node) near.add(visible(edge.to));
        if (edge.to === node) near.add(visible(edge.from));
      }
    }
    const segment = selected && selected.segment ? selected.segment.name : null;
    layer.selectAll("g.node").classed("selected", (each) => each === selected)
      .classed("near", (each) => each !== selected && (near.has(each) || (segment !== null && each.leaf && each.node.segment === segment)));
    const name = selected && selected.leaf ? selected.node.name : null;
    layer.selectAll("g.edge").classed("near", (each) => name !== null && each.edges.some((edge) => edge.from === name || edge.to === name));
  }

  const quick = () => (matchMedia("(prefers-reduced-motion: reduce)").matches || document.hidden ? 0 : 250);
  const shown = () => { const box = svg.node().getBoundingClientRect(); return { width: box.width || 800, height: box.height || 600 }; };
  function move(transform, time = quick()) {
    if (time) svg.transition().duration(time).call(zoom.transform, transform);
    else svg.call(zoom.transform, transform);
  }

  // The whole program in the window; where it is long, from its beginning, at a size that can be read.
  function fit(time, least = 0) {
    const { width, height } = shown(), placed = state.placed;
    const scale = Math.min(1.15, (width - 40) / placed.width, Math.max((height - 40) / placed.height, least));
    const top = placed.height * scale < height ? (height - placed.height * scale) / 2 : 16;
    move(d3.zoomIdentity.translate((width - placed.width * scale) / 2, top).scale(scale), time);
  }

  // Bring a box into the window, moving as little as is needed; at a size that can be read.
  function into(each, centre) {
    const { width, height } = shown(), now = d3.zoomTransform(svg.node()), scale = Math.max(now.k, 0.7);
    const at = middleOf(each), x = at.x * now.k + now.x, y = at.y * now.k + now.y;
    if (!centre && now.k >= 0.45 && x > 80 && x < width - 80 && y > 50 && y < height - 50) return;
    move(d3.zoomIdentity.translate(width / 2 - at.x * scale, height / 2 - at.y * scale).scale(scale));
  }

  // Keep a box where it is in the window while what is around it changes.
  function keeping(each, change) {
    const before = d3.zoomTransform(svg.node()), x = each.x * before.k + before.x, y = each.y * before.k + before.y;
    change();
    const drawn = state.placed.boxes.includes(each);
    if (drawn) move(d3.zoomIdentity.translate(x - each.x * before.k, y - each.y * before.k).scale(before.k), 0);
  }

  return { start, render, fit, into, focus, mark, keeping };
})();
