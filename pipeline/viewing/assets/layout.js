"use strict";
// Where everything is drawn. Each open module is laid out by itself and is then one box of its parent's layout, so that
// the work grows with what is unfolded, and with that alone.

const Layout = (() => {
  const HEAD = 30, LIFT = 24, PAD = 14, LEAF = 44, MODULE = 56, RANKS = 44, GAP = RANKS / 2 - 2;

  const measured = (text, size) => Math.min(30, text.length) * size;
  function leafSize(each) {
    const sub = each.node.values && each.node.values.length ? Words.brief(each.node.values[0]) : "";
    return { width: Math.max(84, measured(each.label, 8) + 26, measured(sub, 6.9) + 26), height: LEAF };
  }
  function moduleSize(each) {
    const type = each.type.split(".").pop();
    return { width: Math.max(132, measured(each.label, 8) + measured(type, 6.6) + 62, Words.facts(each).length * 6.4 + 48), height: MODULE };
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
    const children = each.children.filter((child) => drawn(child, sizes)), rows = inner.of(each);
    children.forEach((child) => measure(child, inner, sizes));
    const key = signature(children, rows);
    if (each.laid !== key) each.graph = laid(children, rows);
    each.laid = key;
    const graph = each.graph, { height } = graph.graph(), [first, width] = reach(graph), least = moduleSize(each).width;
    each.shift = Math.max(0, (least - width) / 2) - first;
    each.up = rows.enter.size ? LIFT : 0;
    return (each.box = { width: Math.max(width, least), height: height + HEAD - each.up - (rows.leave.size ? LIFT : 0) });
  }

  // What a layout depends on: where it is as before, it is not made again.
  const signature = (children, rows) => JSON.stringify([children.map((child) => [child.id, child.box.width, child.box.height]),
    [...rows.between].map(([key, edge]) => [key, Boolean(edge.isCut)]), [...rows.enter.keys()], [...rows.leave.keys()]]);

  function laid(children, rows) {
    const graph = new dagre.graphlib.Graph(), wide = children.length > 30;
    graph.setGraph({ rankdir: "TB", nodesep: 28, ranksep: RANKS, ranker: wide ? "tight-tree" : "network-simplex", marginx: PAD, marginy: PAD });
    graph.setDefaultEdgeLabel(() => ({}));
    children.forEach((child) => graph.setNode(child.id, { ...child.box }));
    rows.between.forEach((edge) => graph.setEdge(edge.from.id, edge.to.id, { width: edge.isCut ? 60 : 0, height: edge.isCut ? 20 : 0, labelpos: "c" }));
    if (rows.enter.size) graph.setNode("in", { width: 1, height: 1 });
    if (rows.leave.size) graph.setNode("out", { width: 1, height: 1 });
    rows.enter.forEach((edge) => graph.setEdge("in", edge.to.id, {}));
    rows.leave.forEach((edge) => graph.setEdge(edge.from.id, "out", {}));
    dagre.layout(graph);
    return graph;
  }

  // Where a layout begins and how wide it is, with its edges, which dagre does not count.
  function reach(graph) {
    const bends = graph.edges().flatMap((edge) => graph.edge(edge).points.map((p) => p.x));
    const first = Math.min(0, ...bends.map((x) => x - PAD)), last = Math.max(graph.graph().width, ...bends.map((x) => x + PAD));
    return [first, last - first];
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
    rows.between.forEach((edge) => placed.edges.push({ ...edge, points: bent(lower(upper(route(edge.from.id, edge.to.id), edge.from), edge.to), edge.isCut), id: edge.from.id + ">" + edge.to.id }));
    rows.enter.forEach((edge) => placed.edges.push({ ...edge, isCut: false, inner: true, points: bent(ended(lower(route("in", edge.to.id), edge.to), 0, y)), id: each.id + ">in>" + edge.to.id }));
    rows.leave.forEach((edge) => placed.edges.push({ ...edge, isCut: false, inner: true, tail: true, points: bent(ended(upper(route(edge.from.id, "out"), edge.from), -1, y + each.box.height)), id: edge.from.id + ">out>" + each.id }));
  }

  // Edges leave a box at the middle of its lower side and reach the next at the middle of its upper side, and bend
  // between ranks alone, so that none runs through a neighbour. Those of an open module do so where the edges inside it
  // begin and end. Where two neighbouring ranks are joined, the middle is a bend only if the bytes of a cut stand there.
  function bent([start, ...rest], isCut) {
    const end = rest.pop();
    const first = { x: start.x, y: rest[0].y - GAP }, last = { x: end.x, y: rest[rest.length - 1].y + GAP };
    const inner = rest.length === 1 && !isCut ? [] : rest;
    return [start, ...(first.y > start.y + 1 ? [first] : []), ...inner, ...(last.y < end.y - 1 ? [last] : []), end];
  }
  const port = (each, name) => each.x + (each.open && each.graph.hasNode(name) ? each.shift + each.graph.node(name).x : each.box.width / 2);
  function upper(points, from) {
    points[0] = { x: port(from, "out"), y: from.y + from.box.height };
    return points;
  }
  function lower(points, to) {
    points[points.length - 1] = { x: port(to, "in"), y: to.y };
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
