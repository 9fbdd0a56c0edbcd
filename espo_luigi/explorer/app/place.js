// A place's panel: its value, its series (plume) and the table of its changes.
"use strict";
(() => {
  const { el, unpack } = espo;
  const panel = document.getElementById("place");
  let chart, drawn;

  // Series of a place: {times, scenarios: {id: {low, median, high, members, names}}, reference, parts, part, bounds}, or null.
  espo.seriesOf = async ({ indicator, place, partName }, index) => {
    const plumes = index.plumes[indicator.id];
    if (!plumes) return null;
    const { tiles } = plumes;
    const key = place.kind !== "cell" ? plumes[`${place.kind}s`]
      : tiles && `${tiles.key}${Math.floor(place.id[0] / tiles.rows)}_${Math.floor(place.id[1] / tiles.columns)}`;
    if (!key) return null;
    const file = await espo.load(key);
    const cell = (file.ids ?? file.cells).findIndex((one) => String(one) === String(place.id));
    if (cell < 0) return null;
    const part = Math.max(0, file.parts.indexOf(partName));
    const times = file.years ?? (Array.isArray(file.times[0]) ? file.times[part] : file.times);
    const cut = (packed, member = 0) => {
      if (!packed) return null;
      const array = unpack(packed);
      const [cells, parts, count] = array.shape.slice(-3);
      return array.row(((member * cells + cell) * parts + part) * count, count);
    };
    const scenarios = {};
    for (const [id, one] of Object.entries(file.scenarios)) {
      const members = Array.from({ length: one.members?.shape[0] ?? 0 }, (_, member) => cut(one.members, member));
      const median = cut(one.median) ?? members[0];
      scenarios[id] = { low: cut(one.low), median, high: cut(one.high), members, names: one.names ?? [] };
    }
    return { times, scenarios, reference: cut(file.reference), part: file.parts[part], bounds: file.bounds ?? ["p10", "p50", "p90"] };
  };

  espo.showPlace = async (choice, scene, index) => {
    const { place, indicator } = choice;
    panel.hidden = !place;
    if (!place) return chart?.destroy();
    const series = await espo.seriesOf(choice, index).catch(espo.fail) ?? null;
    const rows = await changesOf(choice, index, series);
    if (espo.choice !== choice) return;
    const focus = panel.contains(document.activeElement) && document.activeElement.id;
    const own = place.kind === espo.map.geometry.kind;
    const { statistics } = choice.entry;
    const known = own ? statistics.map((_, one) => scene.statisticAt(one, place.number)) : rows.find((one) => isShown(one, choice))?.values;
    const ends = known?.length > 2 && /^p/.test(statistics[0])
      ? ` (${statistics[0]} to ${statistics.at(-1)}: ${choice.text(known[0])} to ${choice.text(known.at(-1))})` : "";
    chart?.destroy();
    panel.replaceChildren(...[
      el("div", { class: "place-head" }, el("h2", { id: "place-title" }, el("bdi", {}, place.name)),
        el("button", { type: "button", id: "place-close", "aria-label": "Close the place", onclick: () => espo.go({ place: null }) }, "×")),
      known && el("p", { class: "big" }, el("strong", { id: "place-value" }, choice.text(known[choice.statistic])),
        el("bdi", {}, [espo.statisticName(choice.statisticName) + ends, ...(own ? espo.map.trust(place) : [])].join(" · "))),
      own && scene.unusable?.[place.number] === 1 && el("p", { class: "warned" }, "Do not use this cell: its values are flagged."),
      el("h3", {}, el("bdi", {}, indicator.name), ` (${indicator.units}), ${espo.partName(series?.part ?? choice.partName)}`),
      series ? el("div", { id: "chart", role: "img", "aria-label": summary(choice, series, index) }) : el("p", {}, "There are no series of this place."),
      series && el("p", { id: "readout" }, "\u00a0"),
      series && el("ul", { id: "key" }),
      rows.length && table(choice, rows),
      series && el("p", { class: "downloads" }, "Download: ", espo.button("Series (CSV)", () => espo.saveSeries(choice, series))),
    ].filter(Boolean));
    if (focus) document.getElementById(focus)?.focus();
    drawn = series && (() => draw(choice, series, index));
    drawn?.();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn?.());
  new ResizeObserver(() => chart && panel.clientWidth && chart.setSize({ width: width(), height: 260 })).observe(panel);
  const width = () => document.getElementById("chart")?.clientWidth || 360;

  const yearOf = (time) => (typeof time === "number" ? time : parseInt(time, 10));
  const shownId = (choice, series) => (series.scenarios[choice.scenario.id] ? choice.scenario.id : Object.keys(series.scenarios)[0]);

  function summary(choice, series, index) {
    const id = shownId(choice, series);
    const { median } = series.scenarios[id];
    const ends = [0, median.length - 1].map((one) => `${series.times[one]}: ${espo.number(median[one], choice.digits)}`);
    return `${espo.isolate(choice.indicator.name)}, ${espo.isolate(nameOf(index, id))}: ${ends.join("; ")} ${choice.indicator.units}`;
  }
  const nameOf = (index, id) => index.scenarios.find((one) => one.id === id)?.name ?? id;

  function draw(choice, series, index) {
    chart?.destroy();
    const style = getComputedStyle(panel);
    const ink = (name) => style.getPropertyValue(name);
    const palette = ink("--series").trim().split(" ");
    const ids = Object.keys(series.scenarios);
    const shown = shownId(choice, series);
    const colourOf = (id) => palette[Math.max(0, index.scenarios.filter((one) => !one.levels).findIndex((one) => one.id === id)) % palette.length];
    const { low, median, high, members } = series.scenarios[shown];
    const colour = colourOf(shown);
    const rows = [];
    const add = (values, label, stroke, width = 1, more = {}) =>
      rows.push({ values, options: { label, stroke, width, points: { show: false }, ...more } }) - 1;
    const bands = low && high ? [{ series: [add(high, "high", `${colour}66`) + 1, add(low, "low", `${colour}66`) + 1], fill: `${colour}33` }] : [];
    if (members.length > 1) members.forEach((one, number) => add(one, series.scenarios[shown].names[number] ?? "", `${colour}59`, 0.7));
    ids.filter((id) => id !== shown).forEach((id) => add(series.scenarios[id].median, nameOf(index, id), colourOf(id), 1.2, { dash: [5, 3] }));
    if (series.reference) add(series.reference, "reference", ink("--text"), 1.5);
    const main = add(median, nameOf(index, shown), colour, 2.5);
    const periods = [choice.entry.baseline, choice.scenario.levels ? null : choice.alongName].map((one) => /^(\d+)-(\d+)$/.exec(one ?? ""));
    const axis = { stroke: ink("--faint"), grid: { stroke: ink("--grid"), width: 1 }, ticks: { stroke: ink("--grid") }, font: "12px system-ui, sans-serif" };
    const box = document.getElementById("chart");
    box.replaceChildren();
    chart = new uPlot({
      width: width(), height: 260, legend: { show: false }, cursor: { y: false, points: { show: false } },
      scales: { x: { time: false } }, bands,
      axes: [{ ...axis, size: 30, values: (_, ticks) => ticks.map(String) },
        { ...axis, size: 46, values: (_, ticks) => ticks.map((one) => String(one).replace("-", "−")) }],
      series: [{}, ...rows.map((one) => one.options)],
      hooks: {
        drawClear: [(plot) => periods.filter(Boolean).forEach(([, first, last]) => {
          const [a, b] = [first, Number(last) + 1].map((year) => Math.max(plot.bbox.left, Math.min(plot.bbox.left + plot.bbox.width, plot.valToPos(Number(year), "x", true))));
          plot.ctx.fillStyle = ink("--period");
          plot.ctx.fillRect(a, plot.bbox.top, b - a, plot.bbox.height);
        })],
        setCursor: [({ cursor: { idx } }) => {
          const at = idx ?? series.times.length - 1;
          const value = (values) => espo.number(values?.[at] ?? NaN, choice.digits);
          document.getElementById("readout").textContent = `${series.times[at]}: ${value(median)}`
            + `${low && high ? ` (${value(low)} to ${value(high)})` : ""} ${choice.indicator.units}`
            + `${series.reference && Number.isFinite(series.reference[at]) ? `; reference ${value(series.reference)}` : ""}`;
        }],
      },
    }, [series.times.map(yearOf), ...rows.map((one) => one.values.map((value) => (Number.isFinite(value) ? value : null)))], box);
    const entry = (kind, stroke, ...words) => {
      const mark = el("i", { class: kind });
      mark.style.color = stroke;
      return el("li", {}, mark, ...words);
    };
    const name = (id) => el("bdi", {}, nameOf(index, id));
    document.getElementById("key").replaceChildren(...[
      entry("thick", colour, name(shown), members.length > 1 || low ? ", median" : ""),
      low && high ? entry("band", colour, `${series.bounds[0]} to ${series.bounds.at(-1)}`) : null,
      members.length > 1 ? entry("thin", colour, `${members.length} simulations`) : null,
      ...ids.filter((id) => id !== shown).map((id) => entry("dashed", colourOf(id), name(id))),
      series.reference ? entry("thick", ink("--text"), el("bdi", {}, index.reference ?? "Reference")) : null,
    ].filter(Boolean));
    espo.chart = { series: rows.length, median: main + 1, data: chart.data };
  }

  const isShown = (row, { entry, alongName }) => row.entry.scenario === entry.scenario && row.along === alongName;

  // Rows of the table: the maps' numbers of the place, or, of a region or station, those of its series' periods.
  async function changesOf(choice, index, series) {
    const { indicator, place, entry } = choice;
    const maps = index.maps.filter((one) => one.indicator === indicator.id && one.of === "change");
    if (place.kind !== espo.map.geometry.kind) return series ? maps.flatMap((one) => fromSeries(one, choice, index, series)) : [];
    const small = maps.filter((one) => one.key === entry.key || (one.bytes ?? 0) < 1e6);
    const files = await Promise.all(small.map((one) => espo.load(one.key).catch(() => null)));
    return small.flatMap((one, number) => {
      const part = one.parts.indexOf(choice.partName);
      if (part < 0 || !files[number]) return [];
      const values = unpack(files[number].values);
      const count = values.shape.slice(3).reduce((a, b) => a * b, 1);
      return one.along.map((along, a) => ({
        entry: one, scenario: nameOf(index, one.scenario), along,
        values: one.statistics.map((_, s) => values.at(((a * one.parts.length + part) * one.statistics.length + s) * count + place.number)),
      }));
    });
  }

  // Each simulation's mean over the horizon against its mean over the baseline; then the statistics of these changes.
  function fromSeries(entry, { indicator }, index, series) {
    const own = series.scenarios[entry.scenario];
    const period = (text) => /^(\d+)-(\d+)$/.exec(text ?? "")?.slice(1).map(Number);
    const baseline = period(entry.baseline);
    if (!own || !baseline || !entry.statistics.every((one) => /^(p\d+|value)$/.test(one))) return [];
    const mean = (values, [first, last]) => d3.mean(values, (value, at) => (yearOf(series.times[at]) >= first && yearOf(series.times[at]) <= last ? value : NaN));
    return entry.along.filter(period).map((along) => {
      const changes = (own.members.length ? own.members : [own.median]).map((values) => {
        const [before, after] = [mean(values, baseline), mean(values, period(along))];
        return { difference: after - before, quotient: after / before, "per cent": (after / before - 1) * 100 }[indicator.change.kind];
      });
      return { entry, scenario: nameOf(index, entry.scenario), along, values: entry.statistics.map((one) => d3.quantile(changes, one === "value" ? 0.5 : Number(one.slice(1)) / 100)) };
    });
  }

  function table(choice, rows) {
    const { indicator, partName } = choice;
    const statistics = [...new Set(rows.flatMap((one) => one.entry.statistics))];
    const { units } = indicator.change;
    const baseline = rows[0].entry.baseline;
    const head = ["Scenario", "Horizon", ...statistics.map((one) => (one === "p50" ? "Median" : one))].map((one) => el("th", { scope: "col" }, one));
    const digits = espo.decimals(d3.max(rows, (one) => one.entry.limits[1] - one.entry.limits[0]));
    const format = (value) => espo.changeText(value, indicator.change.kind, digits);
    const first = (row, at) => !at || rows[at - 1].entry !== row.entry;
    const group = (row) => el("th", { scope: "rowgroup", rowspan: rows.filter((one) => one.entry === row.entry).length }, el("bdi", {}, row.scenario));
    return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": "changes" }, el("table", {},
      el("caption", { id: "changes" }, `Change (${units || "×"}), ${espo.partName(partName)}${baseline ? `, against ${baseline}` : ""}`),
      el("thead", {}, el("tr", {}, ...head)),
      el("tbody", {}, ...rows.map((row, at) => el("tr", { class: isShown(row, choice) && "current" }, first(row, at) ? group(row) : null,
        el("th", { scope: "row" }, el("bdi", {}, row.along)),
        ...statistics.map((one) => el("td", { class: "number" }, row.entry.statistics.includes(one) ? format(row.values[row.entry.statistics.indexOf(one)]) : "–"))))),
    ));
  }
})();
