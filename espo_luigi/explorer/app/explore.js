// The page: the choice in the URL's hash, the fields that change it, and what follows from it.
"use strict";
(() => {
  const { el, find } = espo;
  espo.fail = (error) => void (find("alert").textContent = error.message);
  // The choice that a hash describes; for what it does not name, the first, of horizons the last.
  function choiceOf(hash) {
    const asked = new URLSearchParams(hash.slice(1));
    const { index } = espo;
    const byId = (list, key) => list.find((one) => String(one.id) === asked.get(key)) ?? list[0];
    const named = (list, key, otherwise = list[0]) => list.find((one) => one === asked.get(key)) ?? otherwise;
    const indicators = index.indicators.filter(({ id }) => index.maps.some((one) => one.indicator === id));
    const indicator = byId(indicators, "i");
    const own = index.maps.filter((one) => one.indicator === indicator.id);
    const ofs = [...new Set(own.map((one) => one.of))].sort();
    const of = named(ofs, "o");
    const scenarios = index.scenarios.filter(({ id }) => own.some((one) => one.scenario === id && one.of === of));
    const scenario = byId(scenarios, "s");
    const entry = own.find((one) => one.scenario === scenario.id && one.of === of);
    const alongName = named(entry.along, "h", entry.along[entry.first?.along ?? entry.along.length - 1]);
    const partName = named(entry.parts, "p");
    const statisticName = named(entry.statistics, "t", entry.first?.statistic ?? entry.statistics.find((one) => one === "p50"));
    const units = (of === "change" ? indicator.change.units : indicator.units) ?? "";
    const kind = of === "change" ? indicator.change.kind : "value";
    const digits = espo.decimals(entry.limits[1] - entry.limits[0]);
    const words = [scenario.name, alongName, espo.partName(partName), espo.statisticName(statisticName),
      entry.baseline && `against ${entry.baseline}`, entry.members > 1 && `${entry.members} simulations`];
    return {
      indicator, indicators, of, ofs, scenario, scenarios, entry, alongName, partName, statisticName, units, kind, digits,
      along: entry.along.indexOf(alongName), part: entry.parts.indexOf(partName), statistic: entry.statistics.indexOf(statisticName),
      place: placeOf(asked), signed: kind === "difference" || kind === "per cent",
      text: (value) => `${espo.changeText(value, kind, digits)}${Number.isFinite(value) && units ? ` ${units}` : ""}`,
      title: `${of === "change" ? "Change of " : ""}${espo.isolate(indicator.name)}${units ? ` (${units})` : ""}`,
      note: words.filter(Boolean).map(espo.isolate).join(" · "),
    };
  }

  espo.changeText = (value, kind, digits) => (kind === "quotient" && Number.isFinite(value) ? "×" : "")
    + espo.number(value, kind === "quotient" ? Math.max(2, digits) : digits, kind === "difference" || kind === "per cent");

  function placeOf(asked) {
    const { geometry, place } = espo.map;
    const [j, i] = /^(\d+),(\d+)$/.exec(asked.get("at") ?? "")?.slice(1).map(Number) ?? [];
    if (j < geometry.ny && i < geometry.nx) return place("cell", [j, i]);
    for (const [key, kind] of [["r", "region"], ["n", "station"]]) {
      const number = espo.index[`${kind}s`].findIndex((one) => String(one.id) === asked.get(key));
      if (number >= 0) return place(kind, number);
    }
    return null;
  }
  // Write a changed choice into the hash; the page follows the hash.
  espo.go = ({ place = espo.choice.place, ...change }) => {
    const { indicator, of, ofs, scenario, alongName, partName, statisticName } = espo.choice;
    const next = { i: indicator.id, ...(ofs.length > 1 && { o: of }), s: scenario.id, h: alongName, p: partName, t: statisticName, ...change };
    if (place) next[{ cell: "at", region: "r", station: "n" }[place.kind]] = String(place.id);
    location.hash = new URLSearchParams(next).toString().replaceAll("%2C", ",");
  };

  async function follow() {
    const choice = (espo.choice = choiceOf(location.hash));
    find("alert").textContent = "";
    fields(choice);
    find("map-title").textContent = choice.title;
    find("map-note").textContent = choice.note;
    try {
      const [file, flags] = await Promise.all([espo.load(choice.entry.key), espo.index.flags ? espo.load("flags") : null]);
      if (espo.choice !== choice) return;
      const scene = espo.map.sceneOf(choice, file, flags);
      espo.map.show(scene);
      below(choice, scene);
      for (const id of ["said", "hover"]) find(id).textContent = choice.place ? espo.map.tell(choice.place) : "";
      await espo.showPlace(choice, scene);
    } catch (error) {
      espo.map.show(null);
      find("place").hidden = true;
      espo.fail(error);
    }
    espo.settled = choice;
  }
  // The legend and the downloads; a link goes to a file in the folder only.
  function below(choice, scene) {
    const width = Math.max(260, Math.min(560, find("map").clientWidth - 30));
    const { group, height } = espo.legend(scene, width);
    const [low, high] = choice.entry.limits.map(choice.text);
    find("legend").replaceChildren(espo.svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Colours from ${low} to ${high}` }, group));
    const file = choice.entry.file ?? choice.indicator.file ?? ":";
    find("map-downloads").replaceChildren(el("span", {}, "Download: "), espo.button("CSV", () => espo.saveMap(choice, scene)),
      espo.button("PNG", () => espo.savePng(choice, scene)), espo.button("SVG", () => espo.saveSvg(choice, scene)),
      ...(/^[\w.][^:\\]*$/.test(file) ? [el("a", { href: file, class: "button" }, "NetCDF")] : []));
  }

  function fields({ indicators, indicator, ofs, of, scenarios, scenario, entry, alongName, partName, statisticName, place }) {
    const plain = (list, name = (one) => one) => list.map((one) => [one, name(one)]);
    const named = (list) => list.map((one) => [one.id, one.name]);
    const places = ["region", "station"].flatMap((kind) => espo.index[`${kind}s`].map((one, number) => [`${kind} ${number}`, one.name]));
    const toPlace = ([kind, number]) => ({ place: kind ? espo.map.place(kind, Number(number)) : null });
    const focused = document.activeElement?.id;
    find("choices").replaceChildren(...[
      field("i", "Indicator", named(indicators), indicator.id),
      ofs.length > 1 && field("o", "Show", plain(ofs, (one) => ({ change: "Change", value: "Value" })[one]), of),
      field("s", "Scenario", named(scenarios), scenario.id),
      field("h", scenario.levels ? "Warming" : "Horizon", plain(entry.along), alongName),
      field("p", "Season", plain(entry.parts, espo.partName), partName),
      entry.statistics.length > 1 && field("t", "Statistic", plain(entry.statistics, espo.statisticName), statisticName),
      places.length > 0 && field("place", "Place", [["", "On the map"], ...places],
        place && place.kind !== "cell" ? `${place.kind} ${place.number}` : "", (value) => toPlace(value ? value.split(" ") : [])),
    ].filter(Boolean));
    if (focused) find(focused)?.focus();
  }

  function field(name, label, options, value, change = (chosen) => ({ [name]: chosen })) {
    const id = `choose-${name}`;
    const option = ([key, words]) => el("option", { value: key, dir: "auto", selected: String(key) === String(value) }, words);
    return el("label", { for: id }, el("span", {}, label),
      el("select", { id, onchange: (event) => espo.go(change(event.target.value)) }, ...options.map(option)));
  }

  espo.load("index").then((index) => {
    espo.index = index;
    document.title = espo.clean(index.title);
    find("title").replaceChildren(el("bdi", {}, index.title));
    espo.map.start();
    addEventListener("hashchange", follow);
    return follow();
  }).catch(espo.fail);
})();
