"use strict";
// Where everything is drawn. Each open module is laid out by itself and is then one box of its parent's layout, so that
// the work grows with what is unfolded, and with that alone.

const Layout = (() => {
  const HEAD = 30, LIFT = 24, PAD = 14, LEAF = 42, MODULE = 54;

  const measured = (text, size) => Math.min(30, text.length) * size;
  function leafSize(each) {
    const sub = each.node.values && each.node.values.length ? Words.brief(each.node.values[0]) : "";
    return { width: Math.max(84, measured(each.label, 7.4) + 26, measured(sub, 6) + 26), height: LEAF };
  }
  function moduleSize(each) {
    const type = each.type.split(".").pop();
    const facts = `${each.count} operators · ${Words.bytes(each.bytes || 0)}` + (each.time ? " · " + Words.ms(each.time) : "");
    return { width: Math.max(132, measured(each.label, 7.6) + measured(type, 6) + 62, facts.length * 5.6 + 48), height: MODULE };
  }

  const drawn = (each, sizes) => sizes || !each.leaf || each.node.kind !== "size";

  function place(model, sizes) {
    const placed = { boxes: [], edges: [] };
    const inner = lifted(model, sizes);
    const size = measure(model.root, inner, sizes);
    put(model.root, 0, 0, inner, placed, sizes);
    return { ...placed, width: size.width, height: size.height };
  }

  // The edges of each open module's layout: those between its children, and those that cross its border.
  function lifted(model, sizes) {
    const found = new Map();
    const of = (each) => found.get(each) || found.set(each, { between: new Map(), enter: new Map(), leave: new Map() }).get(each);
    for (const edge of model.edges) {
      if (edge.size && !sizes) continue;
      const up = chain(model.leaves.get(edge.from)), down = chain(model.leaves.get(edge.to));
      let shared = 0;
      while (shared < up.length && shared < down.length && up[shared] === down[shared]) shared++;
      if (shared === up.length || shared === down.length) continue;  // inside one folded module
      const home = of(up[shared - 1]), key = up[shared].id + ">" + down[shared].id;
      add(home.between, key, edge, up[shared], down[shared]);
      for (let i = shared; i < up.length - 1; i++) add(of(up[i]).leave, up[i + 1].id, edge, up[i + 1], null);
      for (let i = shared; i < down.length - 1; i++) add(of(down[i]).enter, down[i + 1].id, edge, null, down[i + 1]);
    }
    return { of };
  }

  function add(map, key, edge, from, to) {
    const known = map.get(key) || { from, to, edges: [], bytes: 0, cut: 0, tensors: new Set() };
    if (!known.tensors.has(edge.tensor)) {
      known.bytes += edge.bytes;
      known.cut += edge.cut ? edge.bytes : 0;
      known.tensors.add(edge.tensor);
    }
    known.isCut = known.isCut || edge.cut;
    known.edges.push(edge);
    map.set(key, known);
  }

  // From the root to what is drawn for a leaf: as far down as modules are open.
  function chain(leaf) {
    const up = [];
    for (let each = leaf; each; each = each.parent) up.push(each);
    up.reverse();
    const closed = up.findIndex((each) => !each.leaf && !each.open);
    return closed < 0 ? up : up.slice(0, closed + 1);
  }

  function measure(each, inner, sizes) {
    if (each.leaf) return (each.box = leafSize(each));
    if (!each.open) return (each.box = moduleSize(each));
    const graph = new dagre.graphlib.Graph();
    const children = each.children.filter((child) => drawn(child, sizes));
    const wide = children.length > 30;
    graph.setGraph({ rankdir: "TB", nodesep: 26, ranksep: 40, ranker: wide ? "tight-tree" : "network-simplex", marginx: PAD, marginy: PAD });
    graph.setDefaultEdgeLabel(() => ({}));
    children.forEach((child) => graph.setNode(child.id, { ...measure(child, inner, sizes) }));
    const rows = inner.of(each);
    rows.between.forEach((edge) => graph.setEdge(edge.from.id, edge.to.id, { width: edge.isCut ? 60 : 0, height: edge.isCut ? 14 : 0, labelpos: "c" }));
    if (rows.enter.size) graph.setNode("in", { width: 1, height: 1 });
    if (rows.leave.size) graph.setNode("out", { width: 1, height: 1 });
    rows.enter.forEach((edge) => graph.setEdge("in", edge.to.id, {}));
    rows.leave.forEach((edge) => graph.setEdge(edge.from.id, "out", {}));
    dagre.layout(graph);
    each.graph = graph;
    const { width, height } = graph.graph();
    const least = moduleSize(each).width;
    each.shift = Math.max(0, (least - width) / 2);
    each.up = rows.enter.size ? LIFT : 0;
    return (each.box = { width: Math.max(width, least), height: height + HEAD - each.up - (rows.leave.size ? LIFT : 0) });
  }

  function put(each, x, y, inner, placed, sizes) {
    each.x = x;
    each.y = y;
    placed.boxes.push(each);
    if (each.leaf || !each.open) return;
    const graph = each.graph, left = x + each.shift, top = y + HEAD - each.up;
    for (const child of each.children.filter((child) => drawn(child, sizes))) {
      const at = graph.node(child.id);
      put(child, left + at.x - child.box.width / 2, top + at.y - child.box.height / 2, inner, placed, sizes);
    }
    const rows = inner.of(each);
    const route = (a, b) => graph.edge(a, b).points.map((p) => ({ x: p.x + left, y: p.y + top }));
    rows.between.forEach((edge) => placed.edges.push({ ...edge, points: joined(edge, route(edge.from.id, edge.to.id)), id: edge.from.id + ">" + edge.to.id }));
    rows.enter.forEach((edge) => placed.edges.push({ ...edge, isCut: false, inner: true, points: ended(route("in", edge.to.id), 0, y), id: each.id + ">in>" + edge.to.id }));
    rows.leave.forEach((edge) => placed.edges.push({ ...edge, isCut: false, inner: true, tail: true, points: ended(route(edge.from.id, "out"), -1, y + each.box.height), id: edge.from.id + ">out>" + each.id }));
  }

  // An edge to or from an open module ends where the edges inside it begin.
  function joined(edge, points) {
    const port = (each, name) => (each.open && each.graph.hasNode(name) ? each.x + each.shift + each.graph.node(name).x : null);
    const [start, end] = [port(edge.from, "out"), port(edge.to, "in")];
    if (start !== null) points[0] = { x: start, y: edge.from.y + edge.from.box.height };
    if (end !== null) points[points.length - 1] = { x: end, y: edge.to.y };
    return points;
  }

  // The end of a route that lies on the border of its module.
  function ended(points, at, y) {
    const index = at < 0 ? points.length - 1 : 0;
    points[index] = { x: points[index].x, y };
    return points;
  }

  return { place, HEAD };
})();
