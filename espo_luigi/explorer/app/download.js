// Files to take away: CSV of the map and of a place's series, the map as SVG and PNG.
"use strict";
(() => {
  const { el, svg } = espo;
  const pixelsOf = () => document.getElementById("canvas");

  espo.button = (words, onclick) => el("button", { type: "button", onclick }, words);

  function save(name, type, content) {
    const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
    el("a", { href: url, download: name.replace(/[^\w.+-]+/g, "_") }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }
  const nameOf = ({ indicator, scenario, alongName, partName }, ...more) => [indicator.id, scenario.id, alongName, partName, ...more].join("_");

  // A table as text; a spreadsheet must not take a name for a formula.
  const csv = (rows) => rows.map((row) => row.map((one) => {
    if (typeof one === "number") return Number.isFinite(one) ? String(Number(one.toPrecision(7))) : "";
    const text = /^[=+\-@\t\r]/.test(one) ? `'${one}` : one;
    return /[",\r\n']/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",")).join("\r\n") + "\r\n";

  espo.saveMap = (choice, scene, index) => {
    const { entry } = choice;
    const cells = espo.map.geometry.kind === "cell";
    const named = cells ? null : index[`${espo.map.geometry.kind}s`];
    const units = entry.of === "change" ? choice.indicator.change.units : choice.indicator.units;
    const rows = [[...(cells ? ["latitude", "longitude"] : ["id", "name"]), ...entry.statistics.map((one) => `${one} (${units})`), "robustness", "do_not_use"]];
    for (let place = 0; place < scene.count; place++) {
      if (scene.classes[place] === 255) continue;
      const where = cells ? centre(place) : [named[place].id, named[place].name];
      const robust = { 1: "robust", 2: "no robust change", 3: "conflicting" }[scene.robust?.[place]] ?? "";
      rows.push([...where, ...entry.statistics.map((_, one) => scene.statisticAt(one, place)), robust, scene.unusable?.[place] === 1 ? "yes" : ""]);
    }
    save(`${nameOf(choice, entry.of)}.csv`, "text/csv", csv(rows));
  };
  function centre(place) {
    const { geometry } = espo.map;
    const [lon, lat] = geometry.middleOf(Math.floor(place / geometry.nx), place % geometry.nx);
    return [Number(lat.toFixed(4)), Number(lon.toFixed(4))];
  }

  espo.saveSeries = (choice, { times, scenarios, reference, part, bounds }) => {
    const most = d3.max(Object.values(scenarios), (one) => one.members.length);
    const rows = [["scenario", "time", "part", bounds[0], bounds[1], bounds.at(-1), "reference", ...Array.from({ length: most }, (_, one) => `member ${one + 1}`)]];
    for (const [id, one] of Object.entries(scenarios)) {
      rows.push(["members of", id, "", "", "", "", "", ...one.names.map(String)]);
      times.forEach((time, at) => rows.push([id, String(time), part,
        ...[one.low, one.median, one.high, reference, ...one.members].map((values) => values?.[at] ?? NaN)]));
    }
    save(`${nameOf(choice, choice.place.id)}_series.csv`, "text/csv", csv(rows));
  };

  // The legend: classes with their colours, ends where values go on, hatches.
  espo.legend = (scene, width) => {
    const { scale: { bounds, colours }, choice, used } = scene;
    const first = used.has(0) ? 0 : 1;
    const last = used.has(colours.length - 1) ? colours.length : colours.length - 1;
    const wide = Math.min(44, (width - 80) / (last - first));
    const digits = espo.decimals(bounds.at(-1) - bounds[0]);
    const group = svg("g", { "font-family": "system-ui, sans-serif", "font-size": 12, fill: "currentColor" });
    for (let one = first; one < last; one++) {
      const x = 14 + (one - first) * wide;
      const end = one === 0 ? `M${x + wide},0L${x},6.5L${x + wide},13Z` : `M${x},0L${x + wide},6.5L${x},13Z`;
      group.append(one === 0 || one === colours.length - 1 ? svg("path", { d: end, fill: colours[one] })
        : svg("rect", { x, y: 0, width: wide + 0.3, height: 13, fill: colours[one] }));
      if (one > 0 && (one % 2 || wide > 34)) group.append(svg("text", { x, y: 27, "text-anchor": "middle" }, espo.number(bounds[one - 1], digits, choice.signed)));
    }
    const marks = [[scene.hatched, 0, "no robust change"], [scene.crossed, 1, scene.unusable?.includes(1) ? "conflicting, or do not use" : "conflicting"]];
    let x = 10;
    if (choice.units) group.append(svg("text", { x: 18 + (last - first) * wide, y: 11 }, choice.units));
    for (const [shown, which, words] of marks) {
      if (!shown) continue;
      group.append(svg("rect", { x, y: 36, width: 22, height: 13, fill: "#fff", stroke: "#777" }), svg("path", { d: HATCH(x, 36, 22, 13, which), stroke: "#222", fill: "none" }),
        svg("text", { x: x + 28, y: 47 }, words));
      x += 44 + words.length * 7;
    }
    return { group, height: x > 10 ? 52 : 30 };
  };
  const HATCH = (x, y, w, h, crossed) => [0, 8, 16].map((one) => `M${x + one},${y + h}L${Math.min(x + w, x + one + 8)},${y}${crossed ? `M${x + one},${y}L${Math.min(x + w, x + one + 8)},${y + h}` : ""}`).join("");

  function picture(choice, scene) {
    const { geometry, view } = espo.map;
    const { width, height } = geometry;
    const legend = espo.legend(scene, width - 20);
    legend.group.setAttribute("transform", `translate(10 ${height + 66})`);
    const at = `translate(${view.x} ${view.y}) scale(${view.k})`;
    const line = (d, stroke, wide) => svg("path", { d, fill: "none", stroke, "stroke-width": wide / view.k });
    const paths = espo.map.paths();
    const cells = paths ? paths.colours.map((d, one) => d && svg("path", { d, fill: scene.colours[one], stroke: scene.colours[one], "stroke-width": 0.4 / view.k }))
      : geometry.kind === "region" ? geometry.regions.map((d, one) => svg("path", { d, "fill-rule": "evenodd", fill: scene.colours[scene.classes[one]] ?? "none" })) : [];
    const hatches = (paths?.hatches ?? []).map((d, one) => d && svg("path", { d, fill: `url(#hatch${one})` }));
    const dots = geometry.stations.map((point, one) => point && svg("circle", { cx: point[0], cy: point[1], r: 6 / view.k, stroke: "#333", "stroke-width": 1 / view.k,
      fill: geometry.kind === "station" ? scene.colours[scene.classes[one]] ?? "none" : "#fff" }));
    const whole = geometry.kind === "cell" && !paths ? [svg("image", { width, height, href: pixelsOf().toDataURL() })] : [];
    const pattern = (one) => svg("pattern", { id: `hatch${one}`, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: `scale(${1 / view.k})` },
      svg("path", { d: one ? "M0,8L8,0M0,0L8,8" : "M0,8L8,0", stroke: "#222", fill: "none" }));
    return svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height: height + 130, viewBox: `0 0 ${width} ${height + 130}`, color: "#222" },
      svg("defs", {}, svg("clipPath", { id: "frame" }, svg("rect", { width, height })), pattern(0), pattern(1)),
      svg("rect", { width: "100%", height: "100%", fill: "#fff" }),
      svg("g", { "font-family": "system-ui, sans-serif", fill: "#222" }, svg("text", { x: 10, y: 22, "font-size": 16, "font-weight": 600 }, choice.title), svg("text", { x: 10, y: 42, "font-size": 12 }, choice.note)),
      svg("g", { transform: "translate(0 52)", "clip-path": "url(#frame)" }, ...whole, svg("g", { transform: at }, ...[...cells, ...hatches].filter(Boolean),
        line(geometry.lakes, "#3b6f9e", 0.8), line(geometry.borders, "#666", 0.8), line(geometry.coast, "#222", 1), ...geometry.regions.map((d) => line(d, "#222", 1.2)), ...dots.filter(Boolean))),
      legend.group);
  }

  espo.saveSvg = (choice, scene) => save(`${nameOf(choice)}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(picture(choice, scene)));
  espo.savePng = async (choice, scene) => {
    const node = picture(choice, scene);
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(node))}`;
    await image.decode();
    const canvas = el("canvas", { width: 2 * image.width, height: 2 * image.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(`${nameOf(choice)}.png`, "image/png", blob));
  };
})();
