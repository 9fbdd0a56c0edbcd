// The page: the state in the URL's hash, the choices, and what follows from them.
"use strict";
(() => {
  const { el } = espo;
  const find = (id) => document.getElementById(id);
  let index;

  espo.fail = (error) => void (find("alert").textContent = error.message);

  // The choice that a hash describes; what it does not say, or says wrongly, is the first there is.
  function choiceOf(hash) {
    const asked = new URLSearchParams(hash.slice(1));
    const pick = (list, id, key = (one) => one) => list.find((one) => String(key(one)) === id) ?? list[0];
    const indicators = index.indicators.filter(({ id }) => index.maps.some((one) => one.indicator === id));
    const indicator = pick(indicators, asked.get("i"), (one) => one.id);
    const own = index.maps.filter((one) => one.indicator === indicator.id);
    const ofs = [...new Set(own.map((one) => one.of))].sort();
    const of = pick(ofs, asked.get("o"));
    const scenarios = index.scenarios.filter(({ id }) => own.some((one) => one.scenario === id && one.of === of));
    const scenario = pick(scenarios, asked.get("s"), (one) => one.id);
    const entry = own.find((one) => one.scenario === scenario.id && one.of === of);
    const last = (list) => list[list.length - 1];
    const alongName = entry.along.find((one) => one === asked.get("h")) ?? last(entry.along);
    const partName = pick(entry.parts, asked.get("p"));
    const statisticName = entry.statistics.find((one) => one === asked.get("t")) ?? entry.statistics.find((one) => one === "p50") ?? entry.statistics[0];
    const place = placeOf(asked);
    const units = of === "change" ? indicator.change.units : indicator.units;
    const digits = espo.decimals(entry.limits[1] - entry.limits[0]);
    const kind = of === "change" ? indicator.change.kind : "value";
    const text = (value) => `${espo.changeText(value, kind, digits)}${Number.isFinite(value) && units ? ` ${units}` : ""}`;
    const among = (list, name) => list.indexOf(name);
    return { indicator, indicators, of, ofs, scenario, scenarios, entry, alongName, partName, statisticName, place, digits, text, units,
      along: among(entry.along, alongName), part: among(entry.parts, partName), statistic: among(entry.statistics, statisticName),
      signed: kind === "difference" || kind === "per cent",
      title: `${of === "change" ? "Change of " : ""}${espo.isolate(indicator.name)}${units ? ` (${units})` : ""}`,
      note: [scenario.name, alongName, espo.partName(partName), espo.statisticName(statisticName), entry.baseline ? `against ${entry.baseline}` : null, entry.members > 1 ? `${entry.members} simulations` : null]
        .filter(Boolean).map(espo.isolate).join(" · "),
    };
  }

  espo.changeText = (value, kind, digits) => (kind === "quotient" && Number.isFinite(value) ? "×" : "")
    + espo.number(value, kind === "quotient" ? Math.max(2, digits) : digits, kind === "difference" || kind === "per cent");

  function placeOf(asked) {
    const { geometry, place } = espo.map;
    const cell = /^(\d+),(\d+)$/.exec(asked.get("at") ?? "")?.slice(1).map(Number);
    if (cell && geometry.kind === "cell" && cell[0] < geometry.ny && cell[1] < geometry.nx) return place("cell", cell);
    for (const [key, kind] of [["r", "region"], ["n", "station"]]) {
      const number = index[`${kind}s`].findIndex((one) => String(one.id) === asked.get(key));
      if (number >= 0) return place(kind, number);
    }
    return null;
  }

  // Write a changed choice into the hash; the page follows the hash.
  espo.go = (change) => {
    const { indicator, of, ofs, scenario, alongName, partName, statisticName, place } = espo.choice;
    const next = { i: indicator.id, ...(ofs.length > 1 && { o: of }), s: scenario.id, h: alongName, p: partName, t: statisticName, ...change };
    const where = "place" in change ? change.place : place;
    delete next.place;
    if (where) next[{ cell: "at", region: "r", station: "n" }[where.kind]] = String(where.id);
    location.hash = new URLSearchParams(next).toString().replaceAll("%2C", ",");
  };

  async function follow() {
    const choice = (espo.choice = choiceOf(location.hash));
    find("alert").textContent = "";
    controls(choice);
    try {
      const [file, flags] = await Promise.all([espo.load(choice.entry.key), index.flags ? espo.load("flags") : null]);
      if (espo.choice !== choice) return;
      const scene = espo.map.sceneOf(choice, file, flags);
      espo.map.show(scene);
      head(choice, scene);
      await espo.showPlace(choice, scene, index);
    } catch (error) {
      espo.map.show(null);
      find("place").hidden = true;
      espo.fail(error);
    }
    espo.settled = choice;
  }

  function head(choice, scene) {
    find("map-title").textContent = choice.title;
    find("map-note").textContent = choice.note;
    const width = Math.max(260, Math.min(560, find("map").clientWidth));
    const { group, height } = espo.legend(scene, width);
    find("legend").replaceChildren(espo.svg("svg", { width, height, role: "img", "aria-label":
      `Colours from ${espo.number(choice.entry.limits[0], choice.digits, choice.signed)} to ${espo.number(choice.entry.limits[1], choice.digits, choice.signed)} ${choice.units}` }, group));
    const file = choice.entry.file ?? choice.indicator.file;
    find("map-downloads").replaceChildren(el("span", {}, "Download: "), espo.button("CSV", () => espo.saveMap(choice, scene, index)),
      espo.button("PNG", () => espo.savePng(choice, scene)), espo.button("SVG", () => espo.saveSvg(choice, scene)),
      ...(file && !/^([a-z][a-z0-9+.-]*:|[/\\])/i.test(file.trim()) ? [el("a", { href: file, class: "button" }, "NetCDF")] : []));
  }

  function controls(choice) {
    const { indicators, indicator, ofs, of, scenarios, scenario, entry, alongName, partName, statisticName, place } = choice;
    const plain = (list, name = (one) => one) => list.map((one) => [one, name(one)]);
    const named = (list) => list.map((one) => [one.id, one.name]);
    const places = ["region", "station"].flatMap((kind) => index[`${kind}s`].map((one, number) => [`${kind} ${number}`, one.name]));
    const now = place && place.kind !== "cell" ? `${place.kind} ${place.number}` : "";
    const toPlace = (value) => ({ place: value ? espo.map.place(value.split(" ")[0], Number(value.split(" ")[1])) : null });
    const fields = [
      field("i", "Indicator", named(indicators), indicator.id, (i) => ({ i })),
      ofs.length > 1 && field("o", "Show", plain(ofs, (one) => one[0].toUpperCase() + one.slice(1)), of, (o) => ({ o })),
      field("s", "Scenario", named(scenarios), scenario.id, (s) => ({ s })),
      field("h", scenario.levels ? "Warming" : "Horizon", plain(entry.along), alongName, (h) => ({ h })),
      field("p", "Season", plain(entry.parts, espo.partName), partName, (p) => ({ p })),
      entry.statistics.length > 1 && field("t", "Statistic", plain(entry.statistics, espo.statisticName), statisticName, (t) => ({ t })),
      places.length > 0 && field("place", "Place", [["", "On the map"], ...places], now, toPlace),
    ];
    const focus = document.activeElement?.id;
    find("choices").replaceChildren(...fields.filter(Boolean));
    if (focus) find(focus)?.focus();
  }

  function field(name, label, options, value, change) {
    const onchange = (event) => espo.go(change(event.target.value));
    return el("label", { for: `choose-${name}` }, el("span", {}, label), el("select", { id: `choose-${name}`, onchange },
      ...options.map(([id, words]) => el("option", { value: id, dir: "auto", selected: String(id) === String(value) }, words))));
  }

  find("choices").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", follow);
  espo.load("index").then((loaded) => {
    index = espo.index = loaded;
    document.title = espo.clean(loaded.title);
    find("title").replaceChildren(el("bdi", {}, loaded.title));
    espo.map.start(loaded, (place) => espo.go({ place }));
    return follow();
  }).catch(espo.fail);
})();
