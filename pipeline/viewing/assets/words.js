"use strict";
// Numbers and values in words.

const Words = (() => {
  const bytes = (n) => (n >= 1e9 ? (n / 1e9).toFixed(2) + " GB" : n >= 1e6 ? (n / 1e6).toFixed(1) + " MB" : n >= 1e3 ? (n / 1e3).toFixed(1) + " kB" : n + " B");
  const seconds = (s) => (s >= 10 ? s.toFixed(1) : s.toFixed(2)) + " s";
  const ms = (t) => (t >= 10 ? t.toFixed(1) + " ms" : t >= 0.1 ? t.toFixed(2) + " ms" : (1000 * t).toFixed(1) + " µs");
  const share = (part, whole) => (whole ? ((100 * part) / whole).toFixed(1) + " %" : "–");
  const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
  const PLACES = { tensorrt: "TensorRT", pytorch: "PyTorch", host: "host", mixed: "TensorRT and PyTorch" };
  const place = (name) => PLACES[name] || name;
  // JSON has no infinity and no NaN: they are written as {"float": "inf"}.
  const FLOATS = { inf: Infinity, "-inf": -Infinity, nan: NaN };
  const numbers = (_, value) => (value && typeof value === "object" && value.float in FLOATS ? FLOATS[value.float] : value);
  const error = (value) => (!Number.isFinite(value) ? (value === Infinity ? "∞" : String(value)) : value === 0 ? "0" : value < 0.01 || value >= 1000 ? value.toExponential(1) : value.toPrecision(2));

  function size(name, range) {
    return range && range[0] !== range[2] ? `${name}=${range[0]}..${range[1]}..${range[2]}` : name;
  }
  const value = (v) => (!/^(int|float|bool)$/.test(v.dtype) || v.nbytes ? `${v.dtype}[${(v.shape || []).map((s, i) => size(s, (v.ranges || [])[i])).join(", ")}]` : v.dtype);
  const brief = (v) => {
    const dims = (v.shape || []).map((s, i) => { const r = (v.ranges || [])[i]; return r && r[0] !== r[2] ? `${r[0]}..${r[2]}` : s; });
    return `${v.dtype.replace("float", "f").replace("bf", "bf").replace("uint", "u").replace("int", "i")}[${dims.join(", ")}]`;
  };
  // What is said of a folded module in its box.
  function facts(each) {
    const outside = each.count - each.inside, said = [count(each.count, "operator")];
    if (outside) said.push(outside === each.count ? "in PyTorch" : `${outside} in PyTorch`);
    if (each.bytes) said.push(bytes(each.bytes));
    if (each.time) said.push(ms(each.time));
    return said.join(" · ");
  }
  return { numbers, facts, share, bytes, seconds, ms, count, place, error, value, brief };
})();
