"use strict";
// Search by name, operator, module, dtype, converter and source line.

const Search = (() => {
  const MOST = 40;
  const input = document.getElementById("search"), found = document.getElementById("found");
  let state, index, hits = [], at = -1;

  function start(given) {
    state = given;
    index = [];
    Model.walk(state.model.root, (each) => { if (!each.group && each !== state.model.root) index.push({ each, text: words(each) }); });
    input.addEventListener("input", () => look(input.value));
    input.addEventListener("keydown", pressed);
    input.addEventListener("focus", () => input.value && look(input.value));
    document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".search")) close(); });
  }

  function words(each) {
    if (!each.leaf) return `${each.path} ${each.type}`.toLowerCase();
    const n = each.node, weights = (n.weights || []).map((w) => w.name);
    return [n.name, n.target, n.module, n.where, n.converter, n.segment, Words.place(n.place || "host"), ...(n.values || []).map((v) => v.dtype), ...weights].join(" ").toLowerCase();
  }

  function look(text) {
    const parts = text.toLowerCase().split(/\s+/).filter(Boolean);
    hits = parts.length ? index.filter((row) => parts.every((part) => row.text.includes(part))).map((row) => row.each) : [];
    hits = hits.map((each, i) => [rank(each, text.toLowerCase().trim(), parts), i, each]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((row) => row[2]);
    at = hits.length ? 0 : -1;
    found.replaceChildren(...hits.slice(0, MOST).map(option));
    const note = hits.length > MOST ? `${MOST} of ${hits.length}` : parts.length && !hits.length ? "Nothing is found" : "";
    if (note) found.append(Html.element("li", { class: "count", role: "presentation" }, note));
    found.hidden = !parts.length;
    input.setAttribute("aria-expanded", String(!found.hidden));
    state.say(parts.length ? Words.count(hits.length, "match").replace("matchs", "matches") : "");
    point();
  }

  // What is called so comes before what only has it in its source line or module.
  function rank(each, text, parts) {
    const name = (each.leaf ? each.node.name : each.path).toLowerCase(), own = each.leaf ? each.node.target.toLowerCase() : each.type.toLowerCase();
    if (name === text) return 0;
    return parts.every((part) => name.includes(part)) ? 1 : parts.every((part) => own.includes(part) || name.includes(part)) ? 2 : 3;
  }

  function option(each, i) {
    const title = each.leaf ? each.node.name : each.path, sub = each.leaf ? [Model.short(each.node.target), each.node.module, each.node.where].filter(Boolean).join(" · ") : each.type;
    const made = Html.element("li", { role: "option", id: "found-" + i, "aria-selected": "false" }, Html.dot(Model.place(each)), Html.element("span", {}, title), Html.element("small", {}, sub));
    made.addEventListener("click", () => choose(i));
    return made;
  }

  function point() {
    [...found.children].forEach((li, i) => li.setAttribute("aria-selected", String(i === at)));
    if (at >= 0) input.setAttribute("aria-activedescendant", "found-" + at);
    else input.removeAttribute("aria-activedescendant");
    if (found.children[at]) found.children[at].scrollIntoView({ block: "nearest" });
  }

  function choose(i) {
    if (!hits[i]) return;
    close();
    state.select(hits[i], { centre: true });
  }

  function close() {
    found.hidden = true;
    input.setAttribute("aria-expanded", "false");
  }

  function pressed(event) {
    const last = Math.min(hits.length, MOST) - 1;
    if (event.key === "ArrowDown") at = Math.min(last, at + 1);
    else if (event.key === "ArrowUp") at = Math.max(0, at - 1);
    else if (event.key === "Enter") return choose(at);
    else if (event.key === "Escape") { close(); input.blur(); return; }
    else return;
    event.preventDefault();
    point();
  }

  return { start, focus: () => { input.focus(); input.select(); } };
})();
