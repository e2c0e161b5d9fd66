"use strict";
// The program as a tree of modules with nodes as leaves; long lists are put in groups, so that no level is too wide.

const Model = (() => {
  const WIDEST = 80, GROUP = 24;

  const short = (target) => target.replace(/^(torch\.ops\.)?(aten|prims|torch)\./, "").replace(/\.(default|Tensor|Scalar|int|using_ints|dim|dim_IntList)$/, "");

  function build(program) {
    const nodes = new Map(program.nodes.map((each, index) => [each.name, { ...each, index }]));
    const types = new Map((program.modules || []).map((each) => [each.path, each.type || ""]));
    const root = module("", program.title, types.get("") || "");
    const modules = new Map([["", root]]);
    const at = (path) => {
      if (modules.has(path)) return modules.get(path);
      const cut = path.lastIndexOf("."), parent = at(cut < 0 ? "" : path.slice(0, cut));
      const made = module(path, path.slice(cut + 1), types.get(path) || "");
      made.parent = parent;
      parent.children.push(made);
      modules.set(path, made);
      return made;
    };
    const leaves = new Map();
    for (const node of nodes.values()) {
      if (node.kind === "item") continue;
      const parent = at(node.kind === "operator" || node.kind === "size" ? node.module || "" : "");
      const leaf = { id: "n:" + node.name, leaf: true, node, parent, label: label(node), first: node.index };
      leaves.set(node.name, leaf);
      parent.children.push(leaf);
    }
    const times = new Map(((program.profile || {}).nodes || []).map((each) => [each.node, each.milliseconds]));
    const edges = connect(nodes, leaves), next = readers(edges);
    splice(root, edges, next, leaves);
    merge(root);
    measure(root, times);
    group(root);
    const all = new Map();
    walk(root, (each) => all.set(each.id, each));
    return { program, nodes, root, modules, leaves, edges, all, times, readers: next };
  }

  const module = (path, label, type) => ({ id: "m:" + path, path, label, type, children: [], parent: null, open: false });
  const label = (node) => (node.kind === "input" || node.kind === "output" ? node.name : short(node.target));

  // A list of modules has no forward of its own. Where what it holds does not follow upon each other, folding it would
  // draw a circle: then its members stand in its place.
  function splice(each, edges, next, leaves) {
    if (each.leaf) return;
    each.children.forEach((child) => splice(child, edges, next, leaves));
    each.children = each.children.flatMap((child) => {
      if (child.leaf || child.type || !circles(child, edges, next, leaves)) return [child];
      child.children.forEach((inner) => { inner.parent = each; if (!inner.leaf) inner.label = `${child.label}.${inner.label}`; });
      return child.children;
    });
  }

  // A module that holds one module and nothing else is drawn as one with it.
  function merge(each) {
    for (const child of each.children) {
      if (child.leaf) continue;
      while (child.children.length === 1 && !child.children[0].leaf) {
        const [inner] = child.children;
        Object.assign(child, { label: `${child.label}.${inner.label}`, path: inner.path, type: inner.type || child.type, children: inner.children });
        child.children.forEach((below) => (below.parent = child));
      }
      merge(child);
    }
  }

  function circles(module, edges, next, leaves) {
    const inside = (name) => { for (let up = leaves.get(name); up; up = up.parent) if (up === module) return true; return false; };
    const seen = new Set(), queue = edges.filter((edge) => inside(edge.from) && !inside(edge.to)).map((edge) => edge.to);
    while (queue.length) {
      const name = queue.pop();
      if (seen.has(name)) continue;
      seen.add(name);
      if (inside(name)) return true;
      queue.push(...(next.get(name) || []));
    }
    return false;
  }

  function measure(each, times) {
    if (each.leaf) {
      const node = each.node, operator = node.kind === "operator";
      each.count = operator ? 1 : 0;
      each.inside = operator && node.place === "tensorrt" ? 1 : 0;
      each.weights = new Map((node.weights || []).map((w) => [w.name, w.nbytes || 0]));
      each.time = times.get(node.name) || 0;
      return;
    }
    each.weights = new Map();
    each.count = each.inside = each.time = 0;
    each.first = Infinity;
    for (const child of each.children) {
      measure(child, times);
      each.count += child.count;
      each.inside += child.inside;
      each.time += child.time;
      each.first = Math.min(each.first, child.first);
      child.weights.forEach((bytes, name) => each.weights.set(name, bytes));
    }
    each.bytes = [...each.weights.values()].reduce((a, b) => a + b, 0);
    each.children.sort((a, b) => a.first - b.first);
  }

  function group(each) {
    if (each.leaf) return;
    each.children.forEach(group);
    const ends = each.children.filter(isEnd);
    let inner = each.children.filter((child) => !isEnd(child));
    while (inner.length > WIDEST) {
      const size = Math.max(GROUP, Math.ceil(inner.length / WIDEST)), grouped = [];
      for (let i = 0; i < inner.length; i += size) grouped.push(gathered(each, inner.slice(i, i + size), size));
      inner = grouped;
    }
    each.children = [...ends, ...inner].sort((a, b) => a.first - b.first);
  }

  const isEnd = (each) => each.leaf && (each.node.kind === "input" || each.node.kind === "output");

  function gathered(parent, children, size) {
    const made = { id: `g:${parent.id}:${size}:${children[0].id}`, group: true, path: parent.path, type: "", children, parent, open: false };
    children.forEach((child) => (child.parent = made));
    const called = (each) => (each.leaf ? each.node.name : each.group ? each.label : each.path);
    made.label = `${called(children[0])} … ${called(children[children.length - 1])}`;
    made.first = children[0].first;
    made.weights = new Map(children.flatMap((child) => [...child.weights]));
    made.bytes = [...made.weights.values()].reduce((a, b) => a + b, 0);
    for (const key of ["count", "inside", "time"]) made[key] = children.reduce((sum, child) => sum + child[key], 0);
    return made;
  }

  // Edges between what is drawn: a tuple's item stands for the node that made the tuple.
  function connect(nodes, leaves) {
    const source = (name) => {
      let node = nodes.get(name), hops = 0;
      while (node && node.kind === "item" && hops++ < 9) node = nodes.get((node.inputs || [])[0]);
      return node;
    };
    const edges = [];
    for (const target of nodes.values()) {
      if (target.kind === "item") continue;
      for (const name of target.inputs || []) {
        const from = source(name), value = nodes.get(name);
        if (!from || !leaves.has(from.name)) continue;
        const bytes = (value.values || []).reduce((sum, v) => sum + (v.nbytes || 0), 0);
        const cut = from.kind === "operator" && target.kind === "operator" && from.segment !== target.segment;
        edges.push({ from: from.name, to: target.name, tensor: name, bytes, cut, size: from.kind === "size" || target.kind === "size" });
      }
    }
    return edges;
  }

  function readers(edges) {
    const found = new Map();
    for (const edge of edges) {
      if (!found.has(edge.from)) found.set(edge.from, []);
      found.get(edge.from).push(edge.to);
    }
    return found;
  }

  function walk(each, visit) {
    visit(each);
    (each.children || []).forEach((child) => walk(child, visit));
  }

  const sum = (rows, of) => rows.reduce((total, each) => total + of(each), 0);

  // Modules of one class beside each other, the largest first: they are unfolded together or not at all.
  function siblings(modules) {
    const found = new Map();
    for (const each of modules) {
      const key = `${each.parent.id} ${each.type || each.id}`;
      found.set(key, [...(found.get(key) || []), each]);
    }
    return [...found.values()].sort((a, b) => sum(b, (each) => each.count) - sum(a, (each) => each.count));
  }

  // Which modules are open at first: the outer before the inner, while there is room.
  function unfoldSome(model, room) {
    model.root.open = true;
    let shown = model.root.children.length, level = [model.root];
    while (level.length && shown < room) {
      const inner = level.flatMap((each) => each.children).filter((each) => !each.leaf);
      level = [];
      for (const alike of siblings(inner)) {
        const count = sum(alike, (each) => each.count), added = sum(alike, (each) => each.children.length - 1);
        const main = alike[0].parent === model.root && count > 0.6 * model.root.count && added < WIDEST;
        if (count < 0.1 * model.root.count || alike.some((each) => each.count < 2) || (shown + added > room && !main)) continue;
        alike.forEach((each) => (each.open = true));
        shown += added;
        level.push(...alike);
      }
    }
  }

  function isVisible(each) {
    for (let up = each.parent; up; up = up.parent) if (!up.open) return false;
    return true;
  }

  function reveal(each) {
    for (let up = each.parent; up; up = up.parent) up.open = true;
  }

  const place = (each) => (each.leaf ? each.node.place || "host" : each.count === 0 ? "host" : each.inside === each.count ? "tensorrt" : each.inside ? "mixed" : "pytorch");

  return { build, walk, unfoldSome, isVisible, reveal, place, short };
})();
