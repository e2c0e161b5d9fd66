"use strict";
// Elements, made of text only: nothing of a program is ever read as HTML.

const Html = (() => {
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) made.setAttribute(key, value);
    made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return made;
  }
  const dot = (place) => element("i", { class: "dot " + place, "aria-hidden": "true" });
  const code = (text) => element("code", {}, text);
  function facts(rows) {
    const list = element("dl", { class: "facts" });
    for (const [name, value] of rows) if (value) list.append(element("dt", {}, name), element("dd", {}, ...[].concat(value)));
    return list;
  }
  function table(head, rows, numbers = []) {
    const cells = (tag, row) => row.map((cell, i) => element(tag, { class: numbers.includes(i) ? "number" : null, scope: tag === "th" ? "col" : null }, cell));
    const made = element("table", {}, element("thead", {}, element("tr", {}, ...cells("th", head))));
    made.append(element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row)))));
    return made;
  }
  const section = (title, ...children) => (children.some(Boolean) ? [element("h3", {}, title), ...children.filter(Boolean)] : []);
  const list = (items) => element("ul", { class: "plain" }, ...items.map((each) => element("li", {}, ...[].concat(each))));
  function folded(title, items, most = 8) {
    if (items.length <= most) return list(items);
    const rest = element("details", {}, element("summary", {}, `${title}: ${items.length}`));
    rest.append(list(items));
    return rest;
  }
  return { element, dot, code, facts, table, section, list, folded };
})();
