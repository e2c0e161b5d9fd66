"use strict";
// The modules as a tree beside the drawing: operators, bytes of weights, and times where they are known.

const Tree = (() => {
  const list = document.getElementById("tree");
  const ROOM = 24;
  let state;

  function start(given) {
    state = given;
    const timed = state.model.times.size > 0;
    document.querySelector("nav").classList.toggle("timed", timed);
    document.getElementById("time-head").hidden = !timed;
    list.addEventListener("keydown", pressed);
    list.addEventListener("click", clicked);
    list.replaceChildren(item(state.model.root, 1));
    unfoldSome(list.firstChild);
    list.firstChild.tabIndex = 0;
  }

  const inner = (each) => each.children.filter((child) => !child.leaf);

  function item(each, level) {
    const li = document.createElement("li");
    Object.assign(li, { each, tabIndex: -1 });
    li.setAttribute("role", "treeitem");
    li.setAttribute("aria-level", level);
    li.setAttribute("aria-selected", "false");
    li.setAttribute("aria-label", `${each.label} ${each.type}, ${Words.count(each.count, "operator")}, ${Words.place(Model.place(each))}`);
    const row = Html.element("div", { class: "row" });
    row.style.paddingLeft = 3 + level * 7 + "px";
    const label = Html.element("span", { class: "label" }, Html.element("span", { class: "twist" }, inner(each).length ? "▸" : ""), Html.dot(Model.place(each)), " ", each.label, " ");
    label.append(Html.element("small", {}, each.type.split(".").pop()));
    label.title = `${each.path || each.label} ${each.type}`;
    row.append(label, number(each.count.toLocaleString("en")), number(each.bytes ? Words.bytes(each.bytes) : "–"));
    if (state.model.times.size) row.append(number(each.time ? Words.ms(each.time) : "–"));
    li.append(row);
    if (inner(each).length) li.setAttribute("aria-expanded", "false");
    return li;
  }
  const number = (text) => Html.element("span", { class: "number" }, text);

  function open(li, yes) {
    if (!li.hasAttribute("aria-expanded")) return;
    li.setAttribute("aria-expanded", yes);
    li.querySelector(".twist").textContent = yes ? "▾" : "▸";
    const known = li.querySelector(":scope > ul");
    if (known) known.hidden = !yes;
    else if (yes) {
      const below = Html.element("ul", { role: "group" });
      inner(li.each).forEach((child) => below.append(item(child, +li.getAttribute("aria-level") + 1)));
      li.append(below);
    }
  }

  // Open as many levels as have room.
  function unfoldSome(first) {
    let level = [first], shown = 1;
    for (;;) {
      const inside = level.flatMap((li) => inner(li.each));
      if (!inside.length || (shown > 1 && shown + inside.length > ROOM)) return;
      level.forEach((li) => open(li, true));
      level = level.flatMap((li) => [...li.querySelectorAll(":scope > ul > li")]);
      shown += inside.length;
    }
  }

  function clicked(event) {
    const li = event.target.closest("li");
    if (!li) return;
    if (event.target.classList.contains("twist")) return open(li, li.getAttribute("aria-expanded") !== "true");
    focus(li);
    state.select(li.each, { centre: true });
  }

  function focus(li) {
    list.querySelectorAll('[tabindex="0"]').forEach((each) => (each.tabIndex = -1));
    li.tabIndex = 0;
    li.focus({ preventScroll: false });
  }

  function pressed(event) {
    const li = event.target.closest("li"), rows = [...list.querySelectorAll("li")].filter((each) => each.offsetParent), at = rows.indexOf(li);
    const isOpen = li.getAttribute("aria-expanded") === "true";
    const go = (to) => to && focus(to);
    if (event.key === "ArrowDown") go(rows[at + 1]);
    else if (event.key === "ArrowUp") go(rows[at - 1]);
    else if (event.key === "Home") go(rows[0]);
    else if (event.key === "End") go(rows[rows.length - 1]);
    else if (event.key === "ArrowRight") isOpen ? go(rows[at + 1]) : open(li, true);
    else if (event.key === "ArrowLeft") isOpen ? open(li, false) : go(li.parentElement.closest("li"));
    else if (event.key === "Enter" || event.key === " ") state.select(li.each, { centre: true });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // Show a module in the tree as the one selected.
  function mark(each) {
    list.querySelectorAll('[aria-selected="true"]').forEach((li) => li.setAttribute("aria-selected", "false"));
    const path = [];
    for (let up = each && each.leaf ? each.parent : each; up; up = up.parent) path.unshift(up);
    let level = list;
    for (const step of path) {
      const li = [...level.children].find((child) => child.each === step);
      if (!li) return;
      if (step === path[path.length - 1]) {
        li.setAttribute("aria-selected", "true");
        li.firstChild.scrollIntoView({ block: "nearest" });
        return;
      }
      open(li, true);
      level = li.querySelector(":scope > ul");
    }
  }

  return { start, mark };
})();
