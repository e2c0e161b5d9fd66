"use strict";
// Numbers and values in words.

const Words = (() => {
  const bytes = (n) => (n >= 1e9 ? (n / 1e9).toFixed(2) + " GB" : n >= 1e6 ? (n / 1e6).toFixed(1) + " MB" : n >= 1e3 ? (n / 1e3).toFixed(1) + " kB" : n + " B");
  const seconds = (s) => (s >= 10 ? s.toFixed(1) : s.toFixed(2)) + " s";
  const ms = (t) => (t >= 10 ? t.toFixed(1) : t >= 0.1 ? t.toFixed(2) : t.toFixed(4)) + " ms";
  const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
  const PLACES = { tensorrt: "TensorRT", pytorch: "PyTorch", host: "host", mixed: "TensorRT and PyTorch" };
  const place = (name) => PLACES[name] || name;
  const error = (value) => (typeof value === "number" ? value.toPrecision(2) : String(value));

  function size(name, range) {
    return range && range[0] !== range[2] ? `${name}=${range[0]}..${range[1]}..${range[2]}` : name;
  }
  const value = (v) => (!/^(int|float|bool)$/.test(v.dtype) || v.nbytes ? `${v.dtype}[${(v.shape || []).map((s, i) => size(s, (v.ranges || [])[i])).join(", ")}]` : v.dtype);
  const brief = (v) => {
    const dims = (v.shape || []).map((s, i) => { const r = (v.ranges || [])[i]; return r && r[0] !== r[2] ? `${r[0]}..${r[2]}` : s; });
    return `${v.dtype.replace("float", "f").replace("bf", "bf").replace("uint", "u").replace("int", "i")}[${dims.join(", ")}]`;
  };
  return { bytes, seconds, ms, count, place, error, value, brief };
})();
