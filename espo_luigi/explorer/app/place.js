// A place's panel: its value, its series (plume), and the table of its changes.
"use strict";
(() => {
  const { el, find, unpack } = espo;
  const panel = find("place");
  let chart, redraw;
  // {years, part, names, reference, scenarios: {id: {low, median, high, members, names}}} of a place, or null.
  async function seriesOf({ indicator, place, partName }) {
    const { [`${place.kind}s`]: key, tiles } = espo.index.plumes[indicator.id] ?? {};
    const tile = tiles && place.kind === "cell" && place.id.map((one, axis) => Math.floor(one / (axis ? tiles.columns : tiles.rows)));
    if (!key && !tile) return null;
    const file = await espo.load(tile ? `${tiles.key}${tile.join("_")}` : key);
    const cell = (file.cells ?? file.ids).findIndex((one) => String(one) === String(place.id));
    if (cell < 0) return null;
    const part = Math.max(0, file.parts.indexOf(partName));
    const cut = (packed, member = 0) => {
      if (!packed) return null;
      const [cells, parts, times] = packed.shape.slice(-3);
      const first = ((member * cells + cell) * parts + part) * times;
      return d3.range(first, first + times).map(unpack(packed).at);
    };
    const scenarios = Object.fromEntries(Object.entries(file.scenarios).map(([id, one]) => {
      const members = d3.range(one.members?.shape[0] ?? 0).map((member) => cut(one.members, member));
      return [id, { low: cut(one.low), median: cut(one.median) ?? members[0], high: cut(one.high), members, names: one.names ?? [] }];
    }));
    return { years: file.years, part: file.parts[part], names: file.bounds, reference: cut(file.reference), scenarios };
  }

  espo.showPlace = async (choice, scene) => {
    const { place, indicator, entry } = choice;
    panel.hidden = !place;
    redraw = null;
    if (!place) return;
    const own = place.kind === espo.map.geometry.kind;
    const isEmpty = own && entry.statistics.every((_, one) => Number.isNaN(scene.statisticAt(one, place.number))); // no file may be there
    const series = isEmpty ? null : (await seriesOf(choice).catch(espo.fail)) ?? null;
    const rows = await (own ? changesOf(choice) : changesOfSeries(choice, series));
    if (espo.choice !== choice) return;
    const known = own ? entry.statistics.map((_, one) => scene.statisticAt(one, place.number)) : rows.find((one) => isShown(one, choice))?.values;
    const ranks = entry.statistics.filter((one) => /^p\d/.test(one));
    const ends = [ranks[0], ranks.at(-1)].map((one) => known && choice.text(known[entry.statistics.indexOf(one)])).join(" to ");
    const range = known && ranks.length > 1 ? ` (${ranks[0]} to ${ranks.at(-1)}: ${ends})` : "";
    panel.replaceChildren(...[
      el("div", { class: "place-head" }, el("h2", { id: "place-title" }, el("bdi", {}, place.name)),
        el("button", { type: "button", id: "place-close", "aria-label": "Close the place", onclick: () => espo.go({ place: null }) }, "×")),
      known && el("p", { class: "big" }, el("strong", { id: "place-value" }, choice.text(known[choice.statistic])),
        el("bdi", {}, [espo.statisticName(choice.statisticName) + range, ...(own ? espo.map.trust(place.number) : [])].join(" · "))),
      own && scene.unusable?.[place.number] === 1 && el("p", { class: "warned" }, "Do not use this cell: its values are flagged."),
      el("h3", { id: "chart-title" }, el("bdi", {}, indicator.name), `${indicator.units ? ` (${indicator.units})` : ""}, ${espo.partName(series?.part ?? choice.partName)}`),
      series ? el("div", { id: "chart", role: "img", "aria-labelledby": "chart-title readout" }) : el("p", {}, "There are no series of this place."),
      series && el("p", { id: "readout" }),
      series && el("ul", { id: "key" }),
      rows.length && table(choice, rows),
      series && el("p", { class: "downloads" }, "Download: ", espo.button("Series (CSV)", () => espo.saveSeries(choice, series))),
    ].filter(Boolean));
    redraw = series && (() => draw(choice, series));
    redraw?.();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw?.());
  new ResizeObserver(() => redraw && chart.setSize({ width: find("chart").clientWidth, height: 260 })).observe(panel);
  const nameOf = (id) => espo.index.scenarios.find((one) => one.id === id)?.name ?? id;
  const period = (text) => /^(\d+)-(\d+)$/.exec(text ?? "")?.slice(1).map(Number);

  function draw(choice, series) {
    chart?.destroy();
    const style = getComputedStyle(panel);
    const ink = (name) => style.getPropertyValue(name);
    const palette = ink("--series").trim().split(" ");
    const known = espo.index.scenarios.filter((one) => !one.levels).map((one) => one.id);
    const colourOf = (id) => palette[Math.max(0, known.indexOf(id)) % palette.length];
    const shown = series.scenarios[choice.scenario.id] ? choice.scenario.id : Object.keys(series.scenarios)[0];
    const others = Object.keys(series.scenarios).filter((id) => id !== shown);
    const { low, median, high, members } = series.scenarios[shown];
    const colour = colourOf(shown);
    const rows = [];
    const add = (values, stroke, width, more) => rows.push({ values, options: { stroke, width, points: { show: false }, ...more } });
    if (high && low) [high, low].forEach((one) => add(one, `${colour}66`, 1));
    if (members.length > 1) members.forEach((one) => add(one, `${colour}59`, 0.7));
    others.forEach((id) => add(series.scenarios[id].median, colourOf(id), 1.2, { dash: [5, 3] }));
    if (series.reference) add(series.reference, ink("--text"), 1.5);
    add(median, colour, 2.5);
    const periods = [choice.entry.baseline, choice.alongName].map(period).filter(Boolean);
    const grid = { stroke: ink("--grid"), width: 1 };
    const axis = { stroke: ink("--faint"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const digits = espo.decimals(d3.max(median) - d3.min(median));
    const text = (values, at) => espo.number(values?.[at] ?? NaN, digits);
    chart = new uPlot({
      width: find("chart").clientWidth, height: 260, legend: { show: false }, cursor: { y: false, points: { show: false } },
      scales: { x: { time: false } }, bands: high && low ? [{ series: [1, 2], fill: `${colour}33` }] : [],
      axes: [{ ...axis, size: 30, values: (_, ticks) => ticks.map(String) },
        { ...axis, size: 46, values: (_, ticks) => ticks.map((one) => String(one).replace("-", "−")) }],
      series: [{}, ...rows.map((one) => one.options)],
      hooks: {
        drawClear: [({ bbox, ctx, valToPos }) => periods.forEach(([first, last]) => {
          const [a, b] = [first, last + 1].map((year) => Math.max(bbox.left, Math.min(bbox.left + bbox.width, valToPos(year, "x", true))));
          ctx.fillStyle = ink("--period");
          ctx.fillRect(a, bbox.top, b - a, bbox.height);
        })],
        setCursor: [({ cursor: { idx } }) => {
          const at = idx ?? series.years.length - 1;
          find("readout").textContent = `${series.years[at]}: ${text(median, at)}${high && low ? ` (${text(low, at)} to ${text(high, at)})` : ""}`
            + ` ${choice.indicator.units ?? ""}${Number.isFinite(series.reference?.[at]) ? `; reference ${text(series.reference, at)}` : ""}`;
        }],
      },
    }, [series.years, ...rows.map((one) => one.values.map((value) => (Number.isFinite(value) ? value : null)))], find("chart"));
    espo.chart = chart;
    const key = (kind, stroke, ...words) => {
      const line = el("i", { class: kind });
      line.style.color = stroke;
      return el("li", {}, line, ...words);
    };
    find("key").replaceChildren(...[
      key("thick", colour, el("bdi", {}, nameOf(shown)), high && low ? ", median" : ""),
      high && low && key("band", colour, `${series.names[0]} to ${series.names.at(-1)}`),
      members.length > 1 && key("thin", colour, `${members.length} simulations`),
      ...others.map((id) => key("dashed", colourOf(id), el("bdi", {}, nameOf(id)))),
      series.reference && key("thick", ink("--text"), el("bdi", {}, espo.index.reference ?? "Reference")),
    ].filter(Boolean));
  }
  const isShown = ({ entry, along }, choice) => entry.of === choice.of && entry.scenario === choice.scenario.id && along === choice.alongName;
  const changeMaps = (id) => espo.index.maps.filter((one) => one.indicator === id && one.of === "change");
  // Rows of the table from the maps: the shown one, and others that are quickly there.
  async function changesOf({ indicator, place, entry: { key }, partName }) {
    const maps = changeMaps(indicator.id).filter((one) => one.key === key || one.bytes < 1e6);
    const files = await Promise.all(maps.map((one) => espo.load(one.key).catch(() => null)));
    return maps.flatMap((entry, number) => {
      const part = entry.parts.indexOf(partName);
      if (part < 0 || !files[number]) return [];
      const { at, shape } = unpack(files[number].values);
      const count = shape.slice(3).reduce((a, b) => a * b, 1);
      const row = (along) => d3.range(shape[2]).map((one) => at(((along * shape[1] + part) * shape[2] + one) * count + place.number));
      return entry.along.map((along, one) => ({ entry, along, values: row(one) }));
    });
  }
  // Rows of a region or a station: each simulation's means over both periods, and the statistics of their differences.
  function changesOfSeries({ indicator }, series) {
    if (!series) return [];
    const statistic = (name) => ({ min: d3.min, mean: d3.mean, max: d3.max, value: d3.mean })[name]
      ?? (/^p\d+$/.test(name) && ((changes) => d3.quantile(changes, name.slice(1) / 100)));
    const mean = (values, [first, last]) => d3.mean(values.filter((_, at) => series.years[at] >= first && series.years[at] <= last));
    return changeMaps(indicator.id).flatMap((entry) => {
      const [own, baseline] = [series.scenarios[entry.scenario], period(entry.baseline)];
      if (!own || !baseline || !entry.statistics.every((one) => statistic(one))) return [];
      return entry.along.filter(period).map((along) => {
        const changes = (own.members.length ? own.members : [own.median]).map((values) => {
          const [before, after] = [mean(values, baseline), mean(values, period(along))];
          return { difference: after - before, quotient: after / before, "per cent": (after / before - 1) * 100 }[indicator.change.kind];
        });
        return { entry, along, values: entry.statistics.map((one) => statistic(one)(changes)) };
      });
    });
  }

  function table(choice, rows) {
    const statistics = [...new Set(rows.flatMap((one) => one.entry.statistics))];
    const { units, kind } = choice.indicator.change;
    const { baseline } = rows[0].entry;
    const digits = espo.decimals(d3.max(rows, ({ entry: { limits } }) => limits[1] - limits[0]));
    const text = ({ entry, values }, name) => espo.changeText(values[entry.statistics.indexOf(name)], kind, digits);
    const alike = (row) => rows.filter((one) => one.entry === row.entry);
    return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "changes" }, el("table", {},
      el("caption", { id: "changes" }, `Change${units ? ` (${units})` : ""}, ${espo.partName(choice.partName)}${baseline ? `, against ${baseline}` : ""}`),
      el("thead", {}, el("tr", {}, ...["Scenario", "Horizon", ...statistics.map((one) => (one === "p50" ? "Median" : one))].map((one) => el("th", { scope: "col" }, one)))),
      el("tbody", {}, ...rows.map((row) => el("tr", { class: isShown(row, choice) && "current" },
        row === alike(row)[0] ? el("th", { scope: "rowgroup", rowspan: alike(row).length }, el("bdi", {}, nameOf(row.entry.scenario))) : null,
        el("th", { scope: "row" }, el("bdi", {}, row.along)),
        ...statistics.map((one) => el("td", { class: "number" }, text(row, one))))))));
  }
})();
