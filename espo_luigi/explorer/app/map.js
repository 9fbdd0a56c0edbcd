// The map: a canvas with cells, hatches, lines and the cursor; moved by mouse, touch and keyboard.
"use strict";
(() => {
  const { el, load, unpack } = espo;
  const find = (id) => document.getElementById(id);
  const canvas = find("canvas");
  const context = canvas.getContext("2d");
  const view = { k: 1, x: 0, y: 0 };
  const map = { view, scene: null, cursor: null, lines: null };
  espo.map = map;
  let geometry, index, choose, paths, frame;

  map.start = (givenIndex, onChoose) => {
    [index, choose] = [givenIndex, onChoose];
    new ResizeObserver(fit).observe(find("stage"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    fit();
    load("lines").then((lines) => {
      map.lines = lines;
      lay();
      draw();
    }, espo.fail);
  };

  function fit() {
    const { clientWidth: width, clientHeight: height } = find("stage");
    if (!width || !height || (geometry?.width === width && geometry?.height === height)) return;
    [canvas.width, canvas.height] = [width * devicePixelRatio, height * devicePixelRatio];
    const before = geometry;
    geometry = map.geometry = espo.geometry(index, width, height);
    if (before) {
      // The middle of the view stays.
      view.x = width / 2 - ((before.width / 2 - view.x) / before.width) * width;
      view.y = height / 2 - ((before.height / 2 - view.y) / before.height) * height;
    }
    lay();
    if (map.scene) map.show(map.scene);
    draw();
  }

  // Lines on the plane, as paths.
  function lay() {
    const { coast = [], borders = [], lakes = [] } = map.lines ?? {};
    geometry.coast = geometry.lines(coast);
    geometry.borders = geometry.lines(borders);
    geometry.lakes = geometry.lines(lakes);
    for (const name of ["coast", "borders", "lakes", "graticule"]) geometry[`${name}2D`] = new Path2D(geometry[name]);
    geometry.regions2D = geometry.regions.map((one) => new Path2D(one));
  }

  // What the map shows of a choice: values, their classes and hatches.
  map.sceneOf = (choice, file, flags) => {
    const { entry, indicator, along, part, statistic } = choice;
    const values = unpack(file.values);
    const [, parts, statistics] = values.shape;
    const count = values.shape.slice(3).reduce((a, b) => a * b, 1);
    const start = ((along * parts + part) * statistics + statistic) * count;
    const scale = espo.scaleOf(entry.limits, indicator.colours[entry.of]);
    const robust = file.robust && espo.bytes(file.robust).subarray((along * parts + part) * count);
    const unusable = flags && espo.bytes(flags.unusable);
    const scene = { choice, scale, colours: scale.colours, unusable, robust, count, statistics };
    scene.valueAt = (place) => values.at(start + place);
    scene.statisticAt = (which, place) => values.at(start + (which - statistic) * count + place);
    scene.classes = new Uint8Array(count);
    scene.hatches = new Uint8Array(count).fill(255);
    scene.used = new Set();
    for (let place = 0; place < count; place++) {
      const own = (scene.classes[place] = scale.classOf(scene.valueAt(place)));
      scene.used.add(own);
      if (own === 255) continue;
      if (robust?.[place] === 3 || unusable?.[place] === 1) scene.hatches[place] = 1;
      else if (robust?.[place] === 2) scene.hatches[place] = 0;
    }
    scene.hatched = scene.hatches.includes(0);
    scene.crossed = scene.hatches.includes(1);
    return scene;
  };

  map.show = (scene) => {
    map.scene = scene;
    paths = null;
    draw();
  };

  const toScreen = ([x, y]) => [x * view.k + view.x, y * view.k + view.y];
  const toPlane = ([x, y]) => [(x - view.x) / view.k, (y - view.y) / view.k];

  function draw() {
    frame ??= requestAnimationFrame(() => {
      frame = null;
      if (geometry) paint();
    });
  }
  map.draw = draw;

  // Paths of the scene, by colour and by hatch: all of a small grid's, the visible ones of a large grid's; null: as pixels.
  map.paths = () => {
    const { scene } = map;
    if (geometry.kind !== "cell") return null;
    const all = [0, geometry.ny, 0, geometry.nx];
    const large = espo.isLarge(all);
    if (paths && !large) return paths;
    const part = large ? espo.visible(geometry, [...toPlane([0, 0]), ...toPlane([geometry.width, geometry.height])]) : all;
    if (espo.isLarge(part)) return null;
    paths = {
      colours: espo.cellPaths(geometry, scene.classes, scene.colours.length, part),
      hatches: espo.cellPaths(geometry, scene.hatches, 2, part),
    };
    paths.colours2D = paths.colours.map((one) => new Path2D(one));
    paths.hatches2D = paths.hatches.map((one) => new Path2D(one));
    return paths;
  };

  function paint() {
    const ratio = devicePixelRatio;
    const style = getComputedStyle(canvas);
    const ink = (name) => style.getPropertyValue(name);
    const plane = () => context.setTransform(ratio * view.k, 0, 0, ratio * view.k, ratio * view.x, ratio * view.y);
    const stroke = (path, colour, width) => {
      [context.strokeStyle, context.lineWidth] = [colour, width / view.k];
      context.stroke(path);
    };
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.lineJoin = "round";
    plane();
    stroke(geometry.graticule2D, ink("--graticule"), 1);
    if (map.scene) paintValues(plane, stroke, ratio);
    plane();
    stroke(geometry.coast2D, ink("--halo"), 2.6);
    stroke(geometry.lakes2D, ink("--halo"), 1.8);
    stroke(geometry.lakes2D, ink("--lake"), 0.8);
    stroke(geometry.borders2D, ink("--border"), 0.8);
    stroke(geometry.coast2D, ink("--coast"), 1);
    geometry.regions2D.forEach((path) => {
      stroke(path, ink("--halo"), 3);
      stroke(path, ink("--region"), 1.2);
    });
    if (geometry.kind !== "station") geometry.stations.forEach((_, place) => dot(place, ink("--dot"), ink("--coast"), 3.5));
    for (const [place, colour] of [[map.scene?.choice.place, "--chosen"], [map.cursor, "--cursor"]]) {
      if (!place) continue;
      plane();
      const outline = place.kind === "cell" ? new Path2D(espo.cellPath(geometry, ...place.id))
        : place.kind === "region" ? geometry.regions2D[place.number] : null;
      if (outline) {
        stroke(outline, ink("--halo"), 5);
        stroke(outline, ink(colour), 2.5);
      }
      if (place.kind !== "region") ring(map.pointOf(place), ink("--halo"), ink(colour));
    }
  }

  function paintValues(plane, stroke, ratio) {
    const { scene } = map;
    if (geometry.kind === "station") {
      scene.classes.forEach((own, place) => dot(place, scene.colours[own] ?? "transparent", "#333", 7, scene.hatches[place]));
      return;
    }
    plane();
    if (geometry.kind === "region") {
      scene.classes.forEach((own, place) => {
        context.fillStyle = scene.colours[own] ?? "transparent";
        context.fill(geometry.regions2D[place], "evenodd");
      });
      return;
    }
    const drawn = map.paths();
    if (!drawn) {
      espo.paintPixels(context, geometry, scene, { k: ratio * view.k, tx: ratio * view.x, ty: ratio * view.y });
      return;
    }
    drawn.colours2D.forEach((path, one) => {
      context.fillStyle = scene.colours[one];
      context.fill(path);
      stroke(path, scene.colours[one], 0.5); // without seams
    });
    drawn.hatches2D.forEach((path, one) => {
      const pattern = context.createPattern(hatch(one === 1), "repeat");
      pattern.setTransform(new DOMMatrix().scale(1 / view.k));
      context.fillStyle = pattern;
      context.fill(path);
    });
  }

  // Around a place that may be small.
  function ring(point, ...colours) {
    const [x, y] = toScreen(point);
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.beginPath();
    context.arc(x, y, 11, 0, 7);
    colours.forEach((colour, thin) => {
      [context.strokeStyle, context.lineWidth] = [colour, thin ? 2.2 : 5];
      context.stroke();
    });
  }
  map.pointOf = ({ kind, id, number }) => (kind === "cell" ? espo.centreOf(geometry, ...id) : geometry.stations[number]);

  function dot(place, fill, line, radius, hatched = 255) {
    const point = geometry.stations[place];
    if (!point) return;
    const [x, y] = toScreen(point);
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    [context.fillStyle, context.strokeStyle, context.lineWidth] = [fill, line, 1];
    context.fill();
    if (hatched !== 255) {
      context.moveTo(x - 5, y + 5);
      context.lineTo(x + 5, y - 5);
      if (hatched === 1) {
        context.moveTo(x - 5, y - 5);
        context.lineTo(x + 5, y + 5);
      }
    }
    context.stroke();
  }

  function hatch(crossed) {
    const tile = el("canvas", { width: 8, height: 8 });
    const on = tile.getContext("2d");
    on.strokeStyle = "rgba(20, 20, 20, .75)";
    on.lineWidth = crossed ? 1.1 : 0.9;
    const lines = crossed ? [[0, 8, 8, 0], [0, 0, 8, 8]] : [[0, 8, 8, 0], [-2, 2, 2, -2], [6, 10, 10, 6]];
    for (const [a, b, c, d] of lines) {
      on.moveTo(a, b);
      on.lineTo(c, d);
    }
    on.stroke();
    return tile;
  }

  // Moving.
  function zoom(factor, [x, y] = [geometry.width / 2, geometry.height / 2]) {
    const k = Math.max(0.8, Math.min(400, view.k * factor));
    [view.x, view.y] = [x - ((x - view.x) * k) / view.k, y - ((y - view.y) * k) / view.k];
    view.k = k;
    draw();
  }
  function pan(x, y) {
    view.x += x;
    view.y += y;
    draw();
  }
  function whole() {
    Object.assign(view, { k: 1, x: 0, y: 0 });
    draw();
  }
  find("zoom-in").onclick = () => zoom(1.6);
  find("zoom-out").onclick = () => zoom(1 / 1.6);
  find("zoom-all").onclick = whole;

  const here = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), here(event));
  }, { passive: false });

  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    if (!pointers.size) moved = 0;
    pointers.set(event.pointerId, here(event));
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = here(event);
    const before = pointers.get(event.pointerId);
    if (!before) return event.pointerType === "mouse" && hover(now);
    moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    pointers.set(event.pointerId, now);
    find("hover").hidden = true;
    if (moved < 5) return;
    if (!other) return pan(now[0] - before[0], now[1] - before[1]);
    const apart = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
    pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    zoom(apart(now) / apart(before), [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, (event) => {
      const point = pointers.get(event.pointerId);
      pointers.delete(event.pointerId);
      const place = name === "pointerup" && point && moved < 5 && placeAt(point);
      if (place) {
        map.cursor = null;
        choose(place);
      }
    });
  }
  canvas.addEventListener("pointerleave", () => (find("hover").hidden = true));
  canvas.addEventListener("blur", () => {
    map.cursor = null;
    draw();
  });

  // The place at a point of the screen: a station near it, else its cell, else its region.
  function placeAt(point) {
    const far = geometry.stations.map((one) => (one ? Math.hypot(...toScreen(one).map((own, axis) => own - point[axis])) : Infinity));
    const nearest = d3.minIndex(far);
    if (far[nearest] < 14) return map.place("station", nearest);
    const [x, y] = toPlane(point);
    const cell = geometry.kind === "cell" && map.hasCells() && espo.cellAt(geometry, x, y);
    if (cell) return map.place("cell", cell);
    context.setTransform(1, 0, 0, 1, 0, 0);
    const number = geometry.regions2D.findIndex((path) => context.isPointInPath(path, x, y, "evenodd"));
    return number < 0 ? null : map.place("region", number);
  }

  // Whether a click on a cell tells something: where series are of regions and stations only, these are chosen.
  map.hasCells = () => {
    const { tiles } = (map.scene && index.plumes[map.scene.choice.indicator.id]) ?? {};
    return geometry.kind === "cell" && Boolean(tiles || !(index.regions.length + index.stations.length));
  };

  map.place = (kind, id) => {
    if (kind === "cell") {
      return { kind, id, number: id[0] * geometry.nx + id[1], name: espo.position(geometry.middleOf(...id)) };
    }
    const { id: own, name } = index[`${kind}s`][id];
    return { kind, id: own, number: id, name };
  };

  // What the map says of a place: its value and what is known of its trust.
  map.tell = (place) => {
    const { scene } = map;
    if (!scene || place.kind !== geometry.kind) return espo.isolate(place.name);
    return `${espo.isolate(place.name)}: ${[scene.choice.text(scene.valueAt(place.number)), ...map.trust(place)].join(", ")}`;
  };
  map.trust = ({ number }) => [
    map.scene.unusable?.[number] === 1 && "do not use",
    { 1: "robust", 2: "no robust change", 3: "conflicting changes" }[map.scene.robust?.[number]],
  ].filter(Boolean);

  function hover(point) {
    const place = geometry && placeAt(point);
    const box = find("hover");
    box.hidden = !place;
    if (!place) return;
    box.textContent = map.tell(place);
    box.style.left = `${Math.min(point[0] + 14, geometry.width - box.offsetWidth - 4)}px`;
    box.style.top = `${Math.max(4, point[1] - box.offsetHeight - 10)}px`;
  }

  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step && event.shiftKey) pan(-60 * step[0], -60 * step[1]);
    else if (step) moveCursor(...step);
    else if (event.key === "Enter" && map.cursor) choose(map.cursor);
    else if (event.key === "+" || event.key === "=") zoom(1.6);
    else if (event.key === "-") zoom(1 / 1.6);
    else if (event.key === "0") whole();
    else return;
    event.preventDefault();
  });

  function moveCursor(right, down) {
    const from = map.cursor ?? map.scene?.choice.place;
    if (map.hasCells()) {
      const middle = [Math.floor(geometry.ny / 2), Math.floor(geometry.nx / 2)];
      const [j, i] = from?.kind === "cell" ? from.id : middle;
      const within = (value, size) => Math.max(0, Math.min(size - 1, value));
      const moves = from?.kind === "cell" ? 1 : 0;
      map.cursor = map.place("cell", [
        within(j - down * geometry.north * moves, geometry.ny), within(i + right * geometry.east * moves, geometry.nx)]);
    } else {
      const all = ["station", "region"].flatMap((kind) => index[`${kind}s`].map((_, one) => map.place(kind, one)));
      const now = all.findIndex((one) => one.kind === from?.kind && one.number === from?.number);
      map.cursor = all[(now + (right || down) + all.length) % all.length] ?? null;
    }
    if (map.cursor) find("said").textContent = map.tell(map.cursor);
    follow();
    draw();
  }

  // Pan so that the cursor is in view.
  function follow() {
    if (!map.cursor || map.cursor.kind === "region") return;
    const [x, y] = toScreen(map.pointOf(map.cursor));
    const out = (value, size) => (value < 30 ? 30 - value : value > size - 30 ? size - 30 - value : 0);
    pan(out(x, geometry.width), out(y, geometry.height));
  }
})();
