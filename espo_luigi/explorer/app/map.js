// The map: a canvas with cells, hatches, lines and the cursor; moved by mouse, touch and keyboard.
"use strict";
(() => {
  const LARGE = 20000; // cells; more of them move as an image
  const { find } = espo;
  const canvas = find("canvas");
  const context = canvas.getContext("2d");
  const layer = document.createElement("canvas"); // the cells, as they were drawn with `drawn`
  const view = { k: 1, x: 0, y: 0 };
  const map = (espo.map = { view, draw, scene: null, cursor: null });
  let geometry, lines = {}, paths, frame, drawn, resting;

  map.start = () => {
    new ResizeObserver(fit).observe(find("stage"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    fit();
    espo.load("lines").then((loaded) => {
      lines = loaded;
      lay();
    }, espo.fail);
  };

  function fit() {
    const { clientWidth: width, clientHeight: height } = find("stage");
    if (!width || !height || (geometry?.width === width && geometry.height === height)) return;
    for (const one of [canvas, layer]) [one.width, one.height] = [width * devicePixelRatio, height * devicePixelRatio];
    const { width: w = width, height: h = height } = geometry ?? {};
    Object.assign(view, view.k === 1 ? { x: 0, y: 0 } : { x: view.x + (width - w) / 2, y: view.y + (height - h) / 2 });
    geometry = map.geometry = espo.geometry(espo.index, width, height);
    lay();
  }
  // Lines and cells on the plane, as paths.
  function lay() {
    for (const name of ["coast", "borders", "lakes"]) geometry[name] = geometry.lines(lines[name] ?? []);
    for (const name of ["coast", "borders", "lakes", "graticule"]) geometry[`${name}2D`] = new Path2D(geometry[name]);
    geometry.regions2D = geometry.regions.map((one) => new Path2D(one));
    map.show(map.scene);
  }
  // What the map shows of a choice: values, their classes of colour, hatched (0) and crossed (1) places.
  map.sceneOf = (choice, file, flags) => {
    const { entry, indicator, along, part, statistic } = choice;
    const values = espo.unpack(file.values);
    const [, parts, statistics] = values.shape;
    const count = values.shape.slice(3).reduce((a, b) => a * b, 1);
    const first = (along * parts + part) * statistics * count;
    const scale = espo.scaleOf(entry.limits, indicator.colours[entry.of], choice.kind === "quotient");
    const robust = file.robust && espo.bytes(file.robust).subarray((along * parts + part) * count);
    const unusable = flags && espo.bytes(flags.unusable);
    const scene = { choice, scale, colours: scale.colours, robust, unusable, count };
    scene.statisticAt = (which, place) => values.at(first + which * count + place);
    scene.valueAt = (place) => scene.statisticAt(statistic, place);
    scene.classes = Uint8Array.from({ length: count }, (_, place) => scale.classOf(scene.valueAt(place)));
    scene.hatches = scene.classes.map((own, place) =>
      own === 255 ? 255 : robust?.[place] === 3 || unusable?.[place] === 1 ? 1 : robust?.[place] === 2 ? 0 : 255);
    return scene;
  };

  map.show = (scene) => {
    map.scene = scene;
    paths = null;
    if (scene) {
      const traced = (classes, count) => (geometry.kind === "cell" ? espo.cellPaths(geometry, classes, count) : []);
      scene.paths = { colours: traced(scene.classes, scene.colours.length), hatches: traced(scene.hatches, 2) };
      const drawable = (list) => list.map((one) => new Path2D(one));
      paths = { colours: drawable(scene.paths.colours), hatches: drawable(scene.paths.hatches) };
    }
    drawn = null;
    draw();
  };
  const toScreen = ([x, y]) => [x * view.k + view.x, y * view.k + view.y];
  const toPlane = ([x, y]) => [(x - view.x) / view.k, (y - view.y) / view.k];
  const onPlane = (on) => on.setTransform(...[view.k, 0, 0, view.k, view.x, view.y].map((one) => one * devicePixelRatio));
  const onScreen = (on) => on.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);

  function draw() {
    frame ??= requestAnimationFrame(() => geometry && paint());
  }
  function stroke(path, colour, width, on = context) {
    [on.strokeStyle, on.lineWidth] = [colour, width / view.k];
    on.stroke(path);
  }

  function paint() {
    frame = null;
    const style = getComputedStyle(canvas);
    const ink = (name) => style.getPropertyValue(name);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    onPlane(context);
    stroke(geometry.graticule2D, ink("--graticule"), 1);
    if (paths) paintCells();
    onPlane(context);
    for (const [name, colour, width] of [["coast", "--halo", 2.6], ["lakes", "--halo", 1.8], ["lakes", "--lake", 0.8],
      ["borders", "--border", 0.8], ["coast", "--coast", 1]]) stroke(geometry[`${name}2D`], ink(colour), width);
    for (const path of geometry.regions2D) [["--halo", 3], ["--region", 1.2]].forEach(([colour, width]) => stroke(path, ink(colour), width));
    const own = geometry.kind === "station" && map.scene;
    geometry.stations.forEach((point, place) =>
      circle(point, own ? 7 : 3.5, [[ink("--coast"), 1]], own ? own.colours[own.classes[place]] ?? "transparent" : "#fff"));
    for (const [place, colour] of [[map.scene?.choice.place, "--chosen"], [map.cursor, "--cursor"]]) {
      if (place) mark(place, [[ink("--halo"), 5], [ink(colour), 2.4]]);
    }
  }

  function paintCells() {
    const still = map.scene.count <= LARGE || !resting;
    if (still && (drawn?.k !== view.k || drawn.x !== view.x || drawn.y !== view.y)) {
      const on = layer.getContext("2d");
      on.setTransform(1, 0, 0, 1, 0, 0);
      on.clearRect(0, 0, layer.width, layer.height);
      onPlane(on);
      paths.colours.forEach((path, one) => {
        on.fillStyle = map.scene.colours[one];
        on.fill(path);
        stroke(path, map.scene.colours[one], 0.5, on); // without seams
      });
      paths.hatches.forEach((path, crossed) => {
        on.fillStyle = hatch(crossed);
        on.fill(path);
      });
      drawn = { ...view };
    }
    const k = drawn ? view.k / drawn.k : 1;
    const [x, y] = drawn ? [view.x - drawn.x * k, view.y - drawn.y * k] : [0, 0];
    context.setTransform(k, 0, 0, k, x * devicePixelRatio, y * devicePixelRatio);
    context.drawImage(layer, 0, 0);
  }

  function hatch(crossed) {
    const tile = espo.el("canvas", { width: 8, height: 8 });
    const on = tile.getContext("2d");
    [on.strokeStyle, on.lineWidth] = ["rgb(20 20 20 / .75)", 0.9 + 0.2 * crossed];
    on.stroke(new Path2D(espo.hatchPath(crossed)));
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / view.k));
    return pattern;
  }
  espo.hatchPath = (crossed) => (crossed ? "M0,8L8,0M0,0L8,8" : "M0,8L8,0M-2,2L2,-2M6,10L10,6");

  function circle(point, radius, strokes, fill = "transparent") {
    if (!point) return;
    onScreen(context);
    context.beginPath();
    context.arc(...toScreen(point), radius, 0, 7);
    context.fillStyle = fill;
    context.fill();
    for ([context.strokeStyle, context.lineWidth] of strokes) context.stroke();
  }

  function mark(place, strokes) {
    const path = place.kind === "region" ? geometry.regions2D[place.number] : new Path2D();
    if (place.kind === "cell") {
      const four = geometry.around(...place.id).map((one) => [geometry.x[one], geometry.y[one]]);
      four.forEach((point) => path.lineTo(...point));
      path.closePath();
      if (Math.abs(four[2][0] - four[0][0]) * view.k < 14) circle(geometry.centre(...place.id), 12, strokes);
    } else if (place.kind === "station") circle(geometry.stations[place.number], 11, strokes);
    onPlane(context);
    strokes.forEach(([colour, width]) => stroke(path, colour, width));
  }
  // Moving: the view is k times the plane, moved by x and y.
  function move(k, x, y) {
    Object.assign(view, { k, x, y });
    clearTimeout(resting);
    resting = setTimeout(() => {
      resting = null;
      draw();
    }, 150);
    draw();
  }
  const pan = (x, y) => move(view.k, view.x + x, view.y + y);
  function zoom(factor, [x, y] = [geometry.width / 2, geometry.height / 2]) {
    const k = Math.max(0.8, Math.min(400, view.k * factor));
    move(k, x - ((x - view.x) * k) / view.k, y - ((y - view.y) * k) / view.k);
  }
  const whole = () => move(1, 0, 0);
  find("zoom-in").onclick = () => zoom(1.6);
  find("zoom-out").onclick = () => zoom(1 / 1.6);
  find("zoom-all").onclick = whole;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), [event.offsetX, event.offsetY]);
  }, { passive: false });
  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    if (!pointers.size) moved = 0;
    pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = [event.offsetX, event.offsetY];
    const before = pointers.get(event.pointerId);
    if (!before) {
      const place = event.pointerType === "mouse" && geometry && placeAt(now);
      return void (find("hover").textContent = place ? map.tell(place) : "");
    }
    moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    pointers.set(event.pointerId, now);
    if (moved < 5) return;
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    pan(...now.map((one, axis) => (one - before[axis]) / pointers.size));
    const apart = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
    if (other) zoom(apart(now) / apart(before), now.map((one, axis) => (one + other[axis]) / 2));
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerup", (event) => {
    const place = pointers.delete(event.pointerId) && moved < 5 && placeAt([event.offsetX, event.offsetY]);
    if (!place) return;
    map.cursor = null;
    espo.go({ place });
  });
  canvas.addEventListener("pointerleave", () => (find("hover").textContent = ""));
  // The place at a point of the screen: a station near it, else its cell, else its region.
  function placeAt(point) {
    const far = geometry.stations.map((one) => (one ? Math.hypot(...toScreen(one).map((own, axis) => own - point[axis])) : Infinity));
    const nearest = d3.minIndex(far);
    if (far[nearest] < 14) return map.place("station", nearest);
    const [x, y] = toPlane(point);
    const cell = hasCells() && espo.cellAt(geometry, x, y);
    if (cell) return map.place("cell", cell);
    context.setTransform(1, 0, 0, 1, 0, 0);
    const number = geometry.regions2D.findIndex((path) => context.isPointInPath(path, x, y, "evenodd"));
    return number < 0 ? null : map.place("region", number);
  }
  // Where series are of regions and stations only, these are chosen.
  function hasCells() {
    const { plumes, regions, stations } = espo.index;
    const hasTiles = map.scene && plumes[map.scene.choice.indicator.id]?.tiles;
    return geometry.kind === "cell" && Boolean(hasTiles || !(regions.length + stations.length));
  }
  map.place = (kind, id) => {
    if (kind === "cell") return { kind, id, number: id[0] * geometry.nx + id[1], name: espo.position(geometry.position(...id)) };
    const { id: own, name } = espo.index[`${kind}s`][id];
    return { kind, id: own, number: id, name };
  };
  // A place's value, and what is known of its trust, in words.
  map.tell = (place) => {
    if (!map.scene || place.kind !== geometry.kind) return espo.isolate(place.name);
    return `${espo.isolate(place.name)}: ${[map.scene.choice.text(map.scene.valueAt(place.number)), ...map.trust(place.number)].join(", ")}`;
  };
  map.trust = (number) => [map.scene.unusable?.[number] === 1 && "do not use",
    ["", "robust", "no robust change", "conflicting changes"][map.scene.robust?.[number]]].filter(Boolean);
  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step && (event.shiftKey || !hasCells())) pan(-60 * step[0], -60 * step[1]);
    else if (step) moveCursor(...step);
    else if (event.key === "Enter" && map.cursor) espo.go({ place: map.cursor });
    else if (event.key === "+" || event.key === "=") zoom(1.6);
    else if (event.key === "-") zoom(1 / 1.6);
    else if (event.key === "0") whole();
    else return;
    event.preventDefault();
  });
  // To the next cell, from the chosen one or the middle; it stays in view.
  function moveCursor(right, down) {
    const from = map.cursor ?? map.scene?.choice.place;
    const { ny, nx, up, right: east } = geometry;
    const [j, i] = from?.kind === "cell" ? [from.id[0] - down * up, from.id[1] + right * east] : [ny >> 1, nx >> 1];
    map.cursor = map.place("cell", [Math.max(0, Math.min(ny - 1, j)), Math.max(0, Math.min(nx - 1, i))]);
    find("said").textContent = map.tell(map.cursor);
    const out = (value, size) => (value < 30 ? 30 - value : value > size - 30 ? size - 30 - value : 0);
    const [x, y] = toScreen(geometry.centre(...map.cursor.id));
    pan(out(x, geometry.width), out(y, geometry.height));
  }
})();
