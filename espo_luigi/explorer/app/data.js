// The one global `espo`: data files, packed arrays, numbers as text, elements.
"use strict";
var espo = (() => {
  const app = {};
  const [kept, loads] = [new Map(), new Map()];
  // A data file calls this.
  app.add = (key, value) => kept.set(key, value);
  // A promise of the value of explore/data/KEY.js; a file that could not be loaded is asked for again.
  app.load = (key) => {
    if (loads.has(key)) return loads.get(key);
    const file = `explore/data/${key.split("/").map(encodeURIComponent).join("/")}.js`;
    const load = new Promise((resolve, reject) => document.head.append(app.el("script", {
      src: file,
      onload: () => (kept.has(key) ? resolve(kept.get(key)) : reject(Error(`${file} is damaged.`))),
      onerror: () => reject(Error(`${file} is missing. Was the whole folder copied or unzipped?`)),
    })));
    loads.set(key, load);
    load.catch(() => loads.delete(key));
    return load;
  };
  app.bytes = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  // A packed array's numbers; the integers are decoded when they are first needed. NaN is missing.
  app.unpack = (packed) => {
    packed.integers ??= new Int16Array(app.bytes(packed.data).buffer);
    const { integers, scale, offset, shape } = packed;
    const at = (place) => (integers[place] === -32768 ? NaN : integers[place] * scale + offset);
    return { shape, at };
  };
  app.find = (id) => document.getElementById(id);
  // An element; children are nodes or text, which is never parsed.
  app.el = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
  const SVG = "http://www.w3.org/2000/svg";
  app.svg = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);
  function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (![null, undefined, false].includes(value)) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((one) => one !== null).map((one) => (typeof one === "string" ? app.clean(one) : one)));
    return node;
  }
  // Without what XML forbids.
  app.clean = (text) => String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
  // Foreign text within a sentence: its direction marks end with it.
  app.isolate = (text) => `\u2068${app.clean(text).replace(/[\u2066-\u2069\u202a-\u202e]/g, "")}\u2069`;
  // As many decimals as tell two hundredths of a span apart.
  app.decimals = (span) => Math.max(0, Math.min(6, 1 - Math.floor(Math.log10((span || 1) / 2))));
  app.number = (value, decimals, signed = false) => {
    if (!Number.isFinite(value)) return "–";
    const text = Math.abs(value).toFixed(decimals);
    return (Number(text) === 0 ? "" : value < 0 ? "−" : signed ? "+" : "") + text;
  };
  const degrees = (value, sides) => `${Math.abs(value).toFixed(2)}° ${sides[value < 0 ? 1 : 0]}`;
  app.position = ([lon, lat]) => `${degrees(lat, "NS")}, ${degrees(((((lon + 180) % 360) + 360) % 360) - 180, "EW")}`;
  const PARTS = { year: "Year", DJF: "Dec–Feb", MAM: "Mar–May", JJA: "Jun–Aug", SON: "Sep–Nov" };
  app.partName = (part) => (Object.hasOwn(PARTS, part) ? PARTS[part] : part);
  app.statisticName = (name) => {
    const rank = /^p(\d+)$/.exec(name)?.[1];
    return rank === undefined ? name[0].toUpperCase() + name.slice(1) : Number(rank) === 50 ? "Median" : `${Number(rank)}th percentile`;
  };
  return app;
})();
