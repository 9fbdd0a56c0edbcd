// Geometry and colours: the places of the index on a plane, cells as paths, values as classes of colour.
"use strict";
(() => {
  // A plane of `width` × `height` with the whole domain; `kind` is what the maps' values belong to: cells or stations.
  espo.geometry = (index, width, height) => {
    const grid = index.grid && corners(index.grid);
    const points = grid ? outline(grid) : index.stations.map(({ lon, lat }) => [lon, lat]);
    const centre = d3.geoCentroid({ type: "MultiPoint", coordinates: points });
    const reach = (Math.max(0.005, ...points.map((point) => d3.geoDistance(centre, point))) * 180) / Math.PI;
    const whole = reach > 80;
    const projection = whole
      ? d3.geoNaturalEarth1().rotate([grid?.regular ? -(grid.west + grid.east) / 2 : -centre[0], 0])
      : d3.geoAzimuthalEqualArea().rotate([-centre[0], -centre[1]]).clipAngle(Math.min(170, reach * 3));
    const pad = Math.min(width, height) * 0.05;
    projection.fitExtent([[pad, pad], [width - pad, height - pad]], { type: "MultiPoint", coordinates: points });
    const path = d3.geoPath(projection).digits(2);
    const lines = (list) => path({ type: "MultiLineString", coordinates: list }) ?? "";
    const step = [30, 20, 10, 5, 2, 1, 0.5].find((one) => reach > 2 * one) ?? 0.2;
    return {
      projection, width, height, lines, kind: grid ? "cell" : "station",
      graticule: path(d3.geoGraticule().step([step, step])()),
      regions: index.regions.map((one) => lines(one.lines)),
      stations: index.stations.map(({ lon, lat }) => projection([lon, lat])),
      ...(grid && cells(grid, projection, whole)),
    };
  };
  function corners(grid) {
    const [ny, nx] = grid.shape;
    if (grid.lat_edges) {
      const { lat_edges: lats, lon_edges: lons } = grid;
      const [lon, lat] = [(place) => lons[place % (nx + 1)], (place) => lats[Math.floor(place / (nx + 1))]];
      return { ny, nx, lon, lat, west: lons[0], east: lons[nx], regular: true };
    }
    return { ny, nx, lon: espo.unpack(grid.corner_lon).at, lat: espo.unpack(grid.corner_lat).at };
  }
  // Corners along the domain's edge.
  function outline({ ny, nx, lon, lat }) {
    const places = d3.range(ny + 1).flatMap((j) => [j * (nx + 1), j * (nx + 1) + nx]);
    places.push(...d3.range(nx + 1).flatMap((i) => [i, ny * (nx + 1) + i]));
    return places.map((place) => [lon(place), lat(place)]).filter((point) => point.every(Number.isFinite));
  }
  // Corners on the plane (x, y), and the middle of a cell in degrees and on the plane.
  function cells({ ny, nx, lon, lat, west, east, regular }, projection, whole) {
    const size = (ny + 1) * (nx + 1);
    const [x, y] = [new Float32Array(size), new Float32Array(size)];
    const middle = (west + east) / 2;
    for (let place = 0; place < size; place++) {
      // The two ends of a whole circle are one meridian, and belong on two sides.
      const shown = whole && regular ? middle + Math.max(-179.999, Math.min(179.999, lon(place) - middle)) : lon(place);
      [x[place], y[place]] = projection([shown, lat(place)]) ?? [NaN, NaN];
    }
    const around = (j, i) => [0, 1, nx + 2, nx + 1].map((one) => j * (nx + 1) + i + one);
    const centre = (j, i) => [x, y].map((values) => d3.mean(around(j, i), (one) => values[one]));
    const position = (j, i) => {
      const four = around(j, i);
      const first = lon(four[0]);
      return [first + d3.mean(four, (one) => ((lon(one) - first + 540) % 360) - 180), d3.mean(four, lat)];
    };
    const up = y[0] < y[ny * (nx + 1)] ? -1 : 1; // the step of j towards the top
    return { ny, nx, x, y, around, centre, position, up, right: x[0] < x[nx] ? 1 : -1 };
  }
  // The cell at a point of the plane, or null.
  espo.cellAt = ({ ny, nx, x, y, around }, px, py) => {
    for (let place = 0; place < ny * nx; place++) {
      const [j, i] = [Math.floor(place / nx), place % nx];
      const [own, across] = [place + j, place + j + nx + 2];
      const far = 4 * (Math.abs(x[own] - x[across]) + Math.abs(y[own] - y[across]));
      if (Math.abs(x[own] - px) > far || Math.abs(y[own] - py) > far) continue;
      const four = around(j, i);
      let inside = false;
      four.forEach((a, one) => {
        const b = four[(one + 3) % 4];
        if (y[a] > py !== y[b] > py && px < ((x[b] - x[a]) * (py - y[a])) / (y[b] - y[a]) + x[a]) inside = !inside;
      });
      if (inside) return [j, i];
    }
    return null;
  };
  // Of each of `count` classes, the path of its cells; neighbours in a row are one polygon.
  espo.cellPaths = ({ ny, nx, x, y }, classes, count) => {
    const paths = Array.from({ length: count }, () => []);
    const point = (place) => `${x[place].toFixed(2)},${y[place].toFixed(2)}`;
    for (let j = 0; j < ny; j++) {
      for (let i = 0; i < nx;) {
        const own = classes[j * nx + i];
        const first = i;
        while (++i < nx && classes[j * nx + i] === own);
        if (own === 255) continue;
        const ring = d3.range(first, i + 1).map((one) => point(j * (nx + 1) + one));
        for (let one = i; one >= first; one--) ring.push(point((j + 1) * (nx + 1) + one));
        paths[own].push(`M${ring.join("L")}Z`);
      }
    }
    return paths.map((one) => one.join(""));
  };
  const rgb = (espo.rgb = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16)));
  // Classes between round numbers, each with the colour of its middle between `stops`; quotients by their logarithm.
  espo.scaleOf = ([low, high], stops, isQuotient) => {
    if (!(high > low)) [low, high] = isQuotient ? [low / 1.1, low * 1.1] : [low - 0.5, low + 0.5];
    const [on, back] = isQuotient ? [Math.log, Math.exp] : [Number, Number];
    const [first, last] = [on(low), on(high)];
    const ratio = (one) => Number(back(first + ((last - first) * one) / 10).toPrecision(3));
    const ticks = isQuotient ? d3.range(11).map(ratio) : d3.ticks(low, high, 12);
    const bounds = ticks.length > 2 ? ticks : [low, (low + high) / 2, high];
    const colourAt = (share) => {
      const place = Math.max(0, Math.min(1, share)) * (stops.length - 1);
      const [below, above] = [Math.floor(place), Math.ceil(place)].map((one) => rgb(stops[one]));
      const mixed = below.map((one, part) => Math.round(one + (above[part] - one) * (place % 1)));
      return `#${mixed.map((one) => one.toString(16).padStart(2, "0")).join("")}`;
    };
    const edges = [first - 1e9, ...bounds.map(on), last + 1e9];
    const colours = d3.pairs(edges, (a, b) => colourAt(((a + b) / 2 - first) / (last - first)));
    return { bounds, colours, classOf: (value) => (Number.isNaN(value) ? 255 : d3.bisectRight(bounds, value)) };
  };
})();
