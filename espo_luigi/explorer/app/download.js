// Files to take away: CSV of the map and of a place's series, the map as SVG and PNG; and the legend.
"use strict";
(() => {
  const { el, svg } = espo;
  const FONT = { "font-family": "system-ui, sans-serif", "font-size": 12 };
  espo.button = (words, onclick) => el("button", { type: "button", onclick }, words);

  function save(choice, more, ending, content) {
    const parts = [choice.indicator.id, choice.of, choice.scenario.id, choice.alongName, choice.partName, more].filter(Boolean);
    const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content]));
    el("a", { href: url, download: `${parts.join("_").replace(/[^\w.+-]+/g, "_")}.${ending}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }
  // No text may be a formula to a spreadsheet.
  const csv = (rows) => rows.map((row) => `${row.map((one) => {
    if (typeof one === "number") return Number.isFinite(one) ? String(Number(one.toPrecision(7))) : "";
    const text = /^[=+\-@\t\r]/.test(one) ? `'${one}` : one;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",")}\r\n`).join("");

  espo.saveMap = (choice, scene) => {
    const { geometry } = espo.map;
    const cells = geometry.kind === "cell";
    const { statistics } = choice.entry;
    const places = d3.range(scene.count).filter((place) => scene.classes[place] !== 255);
    const centre = (place) => geometry.position(Math.floor(place / geometry.nx), place % geometry.nx).map((one) => Number(one.toFixed(4))).reverse();
    const station = (place) => [espo.index.stations[place].id, espo.index.stations[place].name];
    save(choice, "", "csv", csv([
      [...(cells ? ["latitude", "longitude"] : ["id", "name"]), ...statistics.map((one) => `${one}${choice.units ? ` (${choice.units})` : ""}`), "trust"],
      ...places.map((place) => [...(cells ? centre(place) : station(place)), ...statistics.map((_, one) => scene.statisticAt(one, place)), espo.map.trust(place).join("; ")]),
    ]));
  };
  espo.saveSeries = (choice, { years, scenarios, reference, part, names }) => save(choice, `${choice.place.id}_series`, "csv", csv([
    ["scenario", "year", "part", "series", "value"],
    ...(reference ?? []).map((value, at) => ["", String(years[at]), part, "reference", value]),
    ...Object.entries(scenarios).flatMap(([id, { low, median, high, members, names: own }]) =>
      [[names[0], low], [low ? names[1] ?? "median" : "value", median], [names.at(-1), high], ...members.map((one, number) => [own[number], one])]
        .flatMap(([name, values]) => (values ?? []).map((value, at) => [id, String(years[at]), part, name, value]))),
  ]));
  // Classes with their colours, arrows where values go on, and the hatches that there are.
  espo.legend = (scene, width) => {
    const { scale: { bounds }, colours, choice } = scene;
    const shown = d3.range(colours.length).filter((one) => (one && one < bounds.length) || scene.classes.includes(one));
    const zero = Math.max(0, bounds.indexOf(0));
    const wide = Math.min(44, (width - 80) / shown.length);
    const digits = Math.max(choice.kind === "quotient" ? 2 : 0, espo.decimals(bounds.at(-1) - bounds[0]));
    const group = svg("g", { ...FONT, fill: "currentColor" });
    shown.forEach((one, number) => {
      const [x, end] = [22 + number * wide, 22 + (number + 1) * wide];
      const d = one === 0 ? `M${end},0L${x},6.5L${end},13Z` : one === bounds.length ? `M${x},0L${end},6.5L${x},13Z` : `M${x},0H${end + 0.3}V13H${x}Z`;
      group.append(svg("path", { d, fill: colours[one] }));
      if (one && (wide > 38 || (one - 1 - zero) % 2 === 0)) group.append(svg("text", { x, y: 27, "text-anchor": "middle" }, espo.number(bounds[one - 1], digits, choice.signed)));
    });
    group.append(svg("text", { x: 28 + shown.length * wide, y: 11 }, choice.units || (choice.kind === "quotient" ? "×" : "")));
    let x = 22;
    const crosses = [scene.robust && "conflicting", scene.unusable && "do not use"].filter(Boolean).join(", or ");
    ["no robust change", crosses].forEach((words, crossed) => {
      if (!scene.hatches.includes(crossed)) return;
      const tile = (at) => svg("path", { d: espo.hatchPath(crossed), stroke: "#222", fill: "none", transform: `translate(${at} 36)` });
      group.append(svg("path", { d: `M${x},36h24v8h-24Z`, fill: "#fff" }), tile(x), tile(x + 8), tile(x + 16), svg("text", { x: x + 30, y: 44 }, words));
      x += 50 + words.length * 7;
    });
    return { group, height: x > 22 ? 48 : 30 };
  };

  function picture(choice, scene) {
    const { geometry, view: { k, x, y } } = espo.map;
    const { width, height } = geometry;
    const legend = espo.legend(scene, width - 20).group;
    legend.setAttribute("transform", `translate(0 ${height + 66})`);
    const line = (d, stroke, wide) => svg("path", { d, fill: "none", stroke, "stroke-width": wide / k });
    const fill = (d, colour) => svg("path", { d, fill: colour, stroke: colour, "stroke-width": 0.4 / k });
    const dot = (point, place) => point && svg("circle", { cx: point[0], cy: point[1], r: 5 / k, stroke: "#333", "stroke-width": 1 / k,
      fill: geometry.kind === "station" ? scene.colours[scene.classes[place]] ?? "none" : "#fff" });
    const pattern = (crossed) => svg("pattern", { id: `hatch${crossed}`, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: `scale(${1 / k})` },
      svg("path", { d: espo.hatchPath(crossed), stroke: "#222", fill: "none" }));
    return svg("svg", { width, height: height + 130, viewBox: `0 0 ${width} ${height + 130}`, color: "#222" },
      svg("defs", {}, svg("clipPath", { id: "frame" }, svg("rect", { width, height })), pattern(0), pattern(1)),
      svg("rect", { width: "100%", height: "100%", fill: "#fff" }),
      svg("text", { ...FONT, x: 14, y: 22, "font-size": 16, "font-weight": 600 }, choice.title), svg("text", { ...FONT, x: 14, y: 42 }, choice.note),
      svg("g", { transform: "translate(0 52)", "clip-path": "url(#frame)" }, svg("g", { transform: `translate(${x} ${y}) scale(${k})` },
        line(geometry.graticule, "#ccd5dd", 1), ...scene.paths.colours.map((d, one) => fill(d, scene.colours[one])),
        ...scene.paths.hatches.map((d, crossed) => svg("path", { d, fill: `url(#hatch${crossed})` })),
        line(geometry.lakes, "#35658f", 0.8), line(geometry.borders, "#555", 0.8), line(geometry.coast, "#222", 1),
        ...geometry.regions.map((d) => line(d, "#111", 1.2)), ...geometry.stations.map(dot).filter(Boolean))), legend);
  }

  const drawing = (choice, scene) => new XMLSerializer().serializeToString(picture(choice, scene));
  espo.saveSvg = (choice, scene) => save(choice, "", "svg", drawing(choice, scene));
  espo.savePng = async (choice, scene) => {
    const image = el("img", { src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(drawing(choice, scene))}` });
    await image.decode();
    const canvas = el("canvas", { width: 2 * image.width, height: 2 * image.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(choice, "", "png", blob));
  };
})();
